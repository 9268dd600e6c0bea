"""The outbox: at least once, in order, whatever the receiver does and whenever the leader changes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.errors import Expired, Invalid, Unavailable
from mandor.lib.clock import ManualClock, settle
from mandor.lib.quantity import Seconds
from mandor.model.meta import Key, Meta
from mandor.model.receiver import EventBus, EventBusSpec, Receiver, Webhook, WebhookSpec
from mandor.model.record import Event, EventSpec
from mandor.notify.event_sender import EventSender
from mandor.notify.message import Message, message_of, wanted
from mandor.notify.sink import Sink
from mandor.store.base import ALL, Delete, Filter, Listing, Put
from mandor.store.memory import MemoryStore
from mandor.store.recorder import Recorder

Answer = Callable[[], None]


def away() -> None:
    raise Unavailable("nobody answers")


@dataclass
class Taking(Sink):
    """Answers as the test says; what was taken is in `taken`."""

    taken: list[Message] = field(default_factory=list)
    answer: Answer | None = None
    tries: int = 0
    hang: bool = False
    refused: str = ""

    async def send(self, message: Message) -> str:
        self.tries += 1
        if self.hang:
            await asyncio.Event().wait()
        if self.answer is not None:
            self.answer()
        if message.data.message == self.refused:
            raise Invalid("400 no")
        self.taken.append(message)
        return "ok"

    @property
    def texts(self) -> list[str]:
        return [each.data.message for each in self.taken]


class World:
    def __init__(self, history_most: int = 20_000) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock, history_most=history_most)
        self.sinks: dict[str, Taking] = {}

    async def receiver(self, name: str = "ops", **fields: object) -> Taking:
        spec = WebhookSpec(url="http://localhost/x", secret="s", **fields)  # type: ignore[arg-type]
        await self.store.commit(Put(Webhook(meta=Meta(name=name), spec=spec)))
        return self.sinks.setdefault(name, Taking())

    async def happens(
        self,
        text: str,
        about: str = "instance default/web-0",
        *,
        reason: str = "Started",
        type: Literal["normal", "warning"] = "normal",  # noqa: A002 - it is the field's name
    ) -> None:
        now = self.clock.now()
        spec = EventSpec(about=about, reason=reason, type=type, message=text, source="test", last_at=now)
        await self.store.commit(Put(Event(meta=Meta(name=f"e{text}", namespace="default"), spec=spec)))

    async def found(self, name: str = "ops") -> Webhook:
        found = await self.store.get(Key("webhook", "", name))
        assert isinstance(found, Webhook)
        return found

    def _open(self, receiver: Receiver) -> Sink:
        return self.sinks.setdefault(receiver.meta.name, Taking())

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[Recorder]:
        recorder = Recorder(self.store, "notify", self.clock)
        task = asyncio.ensure_future(EventSender(self.store, self.clock, recorder, "c1", self._open).run())
        try:
            await settle()
            yield recorder
        finally:
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled(), task.exception()


@pytest.mark.req("S4-37")
async def test_several_receivers_get_what_each_of_them_wants() -> None:
    world = World()
    everything = await world.receiver("all")
    starts = await world.receiver("starts", events=("instance.Sta*",))
    team = await world.receiver("team", namespaces=("team-*",))
    warnings = await world.receiver("warnings", severity="warning")
    async with world.leading():
        await world.happens("1")
        await world.happens("2", reason="Failed", type="warning")
        await world.happens("3", about="instance team-a/web-0", reason="Placed")
        await world.happens("4", about="node n1", reason="Started")
        await settle()
    assert everything.texts == ["1", "2", "3", "4"]
    assert (starts.texts, team.texts, warnings.texts) == (["1"], ["3"], ["2"])


async def test_a_receiver_is_reported_what_happens_from_its_creation_on() -> None:
    world = World()
    await world.happens("before")
    sink = await world.receiver()
    await world.happens("1")
    async with world.leading():
        await world.happens("2")
        await settle()
    assert sink.texts == ["1", "2"]


async def test_another_leader_goes_on_where_the_last_one_was() -> None:
    world = World()
    sink = await world.receiver()
    async with world.leading():
        await world.happens("1")
        await world.clock.advance(2)
    await world.happens("2")
    async with world.leading():
        await settle()
    assert sink.texts == ["1", "2"]
    assert (await world.found()).status.delivered == 2


async def test_a_message_waits_for_a_receiver_that_is_away_and_the_order_is_kept() -> None:
    world = World()
    sink = await world.receiver(attempts=2)
    sink.answer = away
    async with world.leading():
        await world.happens("1")
        await world.happens("2")
        await world.clock.advance(3600)
        assert sink.tries > 5
        assert (await world.found()).status.failures == sink.tries
        assert (await world.found()).status.message == "nobody answers"
        sink.answer = None
        await world.clock.advance(200)
    assert sink.texts == ["1", "2"]
    status = (await world.found()).status
    assert (status.failures, status.given_up, status.delivered, status.message) == (0, 0, 2, "")


async def test_a_message_that_is_refused_is_given_up_after_its_attempts_and_the_next_one_goes_out() -> None:
    world = World()
    sink = await world.receiver(attempts=3)
    sink.refused = "bad"
    async with world.leading() as recorder:
        await world.happens("bad")
        await world.happens("good")
        await world.clock.advance(60)
        await recorder.flush()
    status = (await world.found()).status
    assert sink.texts == ["good"]
    assert status.given_up == 1
    assert [each.outcome for each in status.log] == ["delivered", "given up", "failed", "failed", "failed"]
    reasons = {each.spec.reason for each in (await world.store.list("event")).items}
    assert {"ReceiverFails", "MessageGivenUp"} <= reasons


async def test_a_request_waiting_longer_than_its_limit_is_refused() -> None:
    world = World()
    sink = await world.receiver(patience=Seconds(600))
    sink.answer = away
    async with world.leading():
        await world.happens("old")
        await world.clock.advance(1000)
        await world.happens("new")
        sink.answer = None
        await world.clock.advance(300)
    assert sink.texts == ["new"]
    assert (await world.found()).status.given_up == 1


async def test_a_hanging_receiver_delays_no_other() -> None:
    world = World()
    stuck = await world.receiver("stuck", timeout=Seconds(100))
    stuck.hang = True
    fine = await world.receiver("fine")
    async with world.leading():
        for number in range(50):
            await world.happens(str(number))
        await settle()
        assert len(fine.texts) == 50
        assert not stuck.taken


async def test_what_came_while_the_watch_was_too_far_behind_is_reported_from_the_list() -> None:
    world = World(history_most=5)
    sink = await world.receiver()
    async with world.leading():
        await world.happens("1")
        await world.clock.advance(2)
    for number in range(2, 30):
        await world.happens(str(number))
    with pytest.raises(Expired):
        await anext(aiter(world.store.watch("event", since=(await world.found()).status.revision)))
    async with world.leading():
        await settle()
    assert sink.texts == [str(number) for number in range(1, 30)]


async def test_a_listing_that_fails_after_an_expired_watch_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(history_most=5)
    sink = await world.receiver()
    async with world.leading():
        await world.happens("1")
        await world.clock.advance(2)
    for number in range(2, 30):
        await world.happens(str(number))
    lists, failures = world.store.list, [Unavailable("the store is away")]

    async def failing(kind: str | None, where: Filter = ALL) -> Listing:
        if kind == Event.kind and failures:
            raise failures.pop()
        return await lists(kind, where)

    monkeypatch.setattr(world.store, "list", failing)
    async with world.leading():
        for _ in range(10):
            await world.clock.advance(1)
    assert not failures
    assert sink.texts == [str(number) for number in range(1, 30)]


async def test_after_a_silence_longer_than_events_are_kept_the_receiver_is_reported_the_gap() -> None:
    world = World(history_most=5)
    sink = await world.receiver()
    async with world.leading():
        await world.happens("1")
        await world.clock.advance(2)
    for number in range(2, 10):
        await world.happens(str(number))
    await world.clock.advance(2 * 86_400)
    async with world.leading():
        await settle()
    assert [each.data.reason for each in sink.taken][:3] == ["Started", "EventsLost", "Started"]
    assert "are missing here if they are no longer stored" in sink.taken[1].data.message


async def test_a_receiver_that_is_switched_off_gets_later_what_happened_meanwhile() -> None:
    world = World()
    sink = await world.receiver()
    async with world.leading():
        await world.happens("1")
        await world.clock.advance(2)
        found = await world.found()
        off = WebhookSpec(url=found.spec.url, secret="s", active=False)
        await world.store.commit(Put(found.changed(spec=off)))
        await settle()
        await world.happens("2")
        await world.clock.advance(10)
        assert sink.texts == ["1"]
        again = await world.found()
        await world.store.commit(Put(again.changed(spec=found.spec)))
        await world.clock.advance(2)
    assert sink.texts == ["1", "2"]


async def test_a_receiver_that_is_deleted_gets_nothing_more() -> None:
    world = World()
    sink = await world.receiver()
    async with world.leading():
        found = await world.found()
        await world.store.commit(Delete(found.key, found.meta.version))
        await settle()
        await world.happens("1")
        await world.clock.advance(10)
    assert not sink.taken


async def test_what_happens_to_receivers_is_reported_to_no_receiver() -> None:
    world = World()
    sink = await world.receiver()
    async with world.leading():
        await world.happens("1", about="webhook ops")
        await world.happens("2", about="event-bus main")
        await settle()
    assert not sink.taken


async def test_the_same_sentence_again_is_another_message_about_the_same_event() -> None:
    world = World()
    sink = await world.receiver()
    async with world.leading():
        await world.happens("1")
        event = (await world.store.list("event")).items[0]
        await world.store.commit(Put(event))
        await settle()
    first, second = sink.taken
    assert first.id != second.id
    assert first.data.event == second.data.event


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["event", "fail", "work", "restart", "pause"]), max_size=25))
def test_whatever_happens_every_event_arrives_and_first_arrivals_are_in_order(steps: list[str]) -> None:
    async def play() -> None:
        world = World(history_most=8)
        sink = await world.receiver(patience=Seconds(86_400))
        number = 0
        rounds: list[list[str]] = [[]]
        for step in steps:
            rounds.append([]) if step == "restart" else rounds[-1].append(step)
        for each in rounds:
            async with world.leading():
                for step in each:
                    if step == "event":
                        number += 1
                        await world.happens(str(number))
                    elif step == "pause":
                        await world.clock.advance(5)
                    else:
                        sink.answer = away if step == "fail" else None
        sink.answer = None
        async with world.leading():
            await world.clock.advance(600)
        assert list(dict.fromkeys(sink.texts)) == [str(each) for each in range(1, number + 1)]

    asyncio.run(play())


def test_an_event_is_a_cloud_event() -> None:
    event = Event(
        meta=Meta(name="e", namespace="default", uid="u1", version=7),
        spec=EventSpec(about="task default/t1", reason="Failed", message="no node", source="vm", type="warning"),
    )
    found = message_of(event, "c1")
    assert (found.id, found.type, found.subject, found.source) == (
        "u1.7",
        "mandor.task.Failed",
        "default/t1",
        "/mandor/c1",
    )
    assert (found.time, found.data.severity, found.data.namespace) == ("1970-01-01T00:00:00.000Z", "warning", "default")


def test_a_bus_filters_as_a_webhook_does() -> None:
    event = Event(meta=Meta(name="e"), spec=EventSpec(about="node n1", reason="Lost", message="", source="x"))
    assert wanted(EventBusSpec(url="nats://h:1"), event)
    assert not wanted(EventBusSpec(url="nats://h:1", namespaces=("default",)), event)
    assert not wanted(EventBusSpec(url="nats://h:1", events=("instance.*",)), event)
    assert EventBus(meta=Meta(name="b"), spec=EventBusSpec(url="nats://h:1")).status.revision == 0
