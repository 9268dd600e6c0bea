"""A real NATS with JetStream keeps what every sink promises, and leaves repeats out by itself."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client

from mandor.lib.clock import SystemClock, settle
from mandor.lib.egress import LOOPBACK, Egress
from mandor.lib.quantity import Seconds
from mandor.lib.tasks import Background
from mandor.model.meta import Key, Meta
from mandor.model.receiver import EventBus, EventBusSpec
from mandor.model.record import Event, EventSpec
from mandor.notify.event_sender import EventSender
from mandor.notify.nats import NatsSink, subject_of
from mandor.notify.sink import Sink
from mandor.notify.sinks import open_sink
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.store.recorder import Recorder
from mandor.testing.sink import SinkSuite, message
from scripts.components import find
from tests.components.nats import Nats, running

pytestmark = pytest.mark.real("nats")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Nats]:
    binary = find("nats")
    assert binary is not None
    with running(binary, tmp_path / "nats") as found:
        yield found


async def no_secret(reference: str, namespace: str) -> bytes:
    raise AssertionError("none is asked for")


def spec_of(server: Nats, **fields: object) -> EventBusSpec:
    return EventBusSpec(url=server.url, **({"timeout": Seconds(20)} | fields))  # type: ignore[arg-type]


@pytest.mark.req("S4-38")
class TestNatsSink(SinkSuite):
    keeps_repeats = False

    @pytest.fixture
    async def sink(self, server: Nats) -> AsyncIterator[Sink]:
        self.server = server
        sink = NatsSink(spec_of(server), no_secret, egress=Egress(LOOPBACK))
        yield sink
        await sink.close()

    async def arrived(self) -> list[tuple[str, bytes]]:
        client = Client()
        await client.connect(self.server.url, connect_timeout=20)
        try:
            stream = client.jetstream(timeout=20)
            count = (await stream.stream_info("MANDOR")).state.messages
            reading = await stream.subscribe("mandor.events.>", ordered_consumer=True)
            found = [await reading.next_msg(timeout=20) for _ in range(count)]
            return [((each.headers or {})["Nats-Msg-Id"], each.data) for each in found]
        finally:
            await client.close()

    def away(self) -> AbstractAsyncContextManager[None]:
        return self._away()

    @asynccontextmanager
    async def _away(self) -> AsyncIterator[None]:
        self.server.stop()
        await settle()
        yield
        await asyncio.to_thread(self.server.start)

    async def test_an_event_of_the_cluster_is_published_to_a_bus_that_was_applied(self, server: Nats) -> None:
        self.server = server
        clock = SystemClock()
        store = MemoryStore(clock=clock)
        await store.commit(Put(EventBus(meta=Meta(name="main"), spec=spec_of(server, events=("task.*",)))))
        recorder = Recorder(store, "tasks", clock)
        courier = EventSender(store, clock, recorder, "c1", lambda each: open_sink(each, no_secret, Egress(LOOPBACK)))
        async with Background() as tasks:
            tasks.start(courier.run())
            for kind, reason in (("node", "NodeLost"), ("task", "TaskFailed")):
                spec = EventSpec(about=f"{kind} default/a", reason=reason, message="no node", source="x", last_at=1e9)
                await store.commit(Put(Event(meta=Meta(name=kind, namespace="default"), spec=spec)))
            async with asyncio.timeout(60):
                while not await self._published(store):
                    await asyncio.sleep(0.05)
        ((_, body),) = await self.arrived()
        assert msgspec.json.decode(body)["type"] == "mandor.task.TaskFailed"

    async def _published(self, store: MemoryStore) -> bool:
        bus = await store.get(Key(EventBus.kind, "", "main"))
        assert isinstance(bus, EventBus)
        return bus.status.delivered > 0


def test_subjects_hold_kind_and_reason_whatever_these_are() -> None:
    assert subject_of("mandor.events", message(reason="Started")) == "mandor.events.instance.Started"
    assert subject_of("t", message(reason="a b.*>")) == "t.instance.a_b___"
