"""Events are queued without waiting, written once, and counted when they repeat."""

import asyncio

import pytest

from mandor.errors import Forbidden, MandorError, TooLarge, Unavailable
from mandor.lib.clock import ManualClock, settle
from mandor.model.meta import Meta
from mandor.model.record import Event
from mandor.store.base import Put, Write
from mandor.store.memory import MemoryStore
from mandor.store.recorder import MESSAGE_MOST, Recorder
from mandor.testing.store import make_instance, make_node


async def events(store: MemoryStore) -> list[Event]:
    return [item for item in (await store.list("event")).items if isinstance(item, Event)]


async def test_a_note_becomes_an_event() -> None:
    clock = ManualClock(start=500.0)
    store = MemoryStore(clock=clock)
    recorder = Recorder(store, "scheduler", clock)
    recorder.note(make_instance("web-0", namespace="shop"), "Placed", "web-0 goes to n1", node="n1")
    recorder.note(make_node("n1"), "Down", "n1 is silent", type="warning")
    await recorder.flush()
    down, placed = sorted(await events(store), key=lambda event: event.meta.namespace)
    assert placed.meta.namespace == "shop"
    assert placed.spec.about == "instance shop/web-0"
    assert (placed.spec.reason, placed.spec.message) == ("Placed", "web-0 goes to n1")
    assert (placed.spec.source, placed.spec.node, placed.spec.type) == ("scheduler", "n1", "normal")
    assert (placed.spec.count, placed.spec.first_at, placed.spec.last_at) == (1, 500.0, 500.0)
    assert (down.meta.namespace, down.spec.node, down.spec.type) == ("default", "n1", "warning")


async def test_a_repeated_event_raises_the_count() -> None:
    clock = ManualClock(start=500.0)
    store = MemoryStore(clock=clock)
    for recorder in (Recorder(store, "agent", clock), Recorder(store, "agent", clock)):  # a restart in between
        for _ in range(3):
            recorder.note(make_node("n1"), "Restarted", "main restarted")
            await clock.advance(1)
        await recorder.flush()
    (event,) = await events(store)
    assert (event.spec.count, event.spec.first_at, event.spec.last_at) == (6, 500.0, 505.0)


async def test_another_object_of_the_same_name_has_its_own_events() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    recorder = Recorder(store, "agent", clock)
    for uid in ("a", "b"):
        recorder.note(make_node("n1").changed(meta=Meta(name="n1", uid=uid)), "Restarted", "main restarted")
    await recorder.flush()
    assert len(await events(store)) == 2


async def test_what_is_noted_while_writing_is_not_lost() -> None:
    class Slow(MemoryStore):
        async def commit(self, *writes: Write) -> int:
            recorder.note(make_node("n1"), "Restarted", "main restarted")
            return await super().commit(*writes)

    clock = ManualClock()
    store = Slow(clock=clock)
    recorder = Recorder(store, "agent", clock)
    recorder.note(make_node("n1"), "Restarted", "main restarted")
    await recorder.flush()
    await recorder.flush()
    (event,) = await events(store)
    assert event.spec.count == 2


async def test_notes_beyond_the_bound_are_counted_and_dropped() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    recorder = Recorder(store, "agent", clock, notes_most=150)
    for number in range(200):
        recorder.note(make_node("n1"), "Restarted", f"time {number}")
    assert recorder.dropped == 50
    await recorder.flush()
    assert len(await events(store)) == 150


@pytest.mark.parametrize("text", ["x" * 10_000, "\udcff broken", "工头 \x00", ""])
async def test_invalid_or_long_text_is_stored_after_cleaning(text: str) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    recorder = Recorder(store, "agent", clock)
    recorder.note(make_node("n1"), text, text)
    recorder.note(make_node("n2"), "Ready", "n2 is ready")
    await recorder.flush()
    found = await events(store)
    assert len(found) == 2
    assert all(len(event.spec.message) <= MESSAGE_MOST for event in found)


@pytest.mark.parametrize("error", [TooLarge("no"), Forbidden("its instance is another node's by now")])
async def test_an_event_that_cannot_be_stored_does_not_block_others(error: MandorError) -> None:
    class Picky(MemoryStore):
        async def commit(self, *writes: Write) -> int:
            if any(isinstance(write, Put) and write.value.spec.reason == "Poison" for write in writes):
                raise error
            return await super().commit(*writes)

    clock = ManualClock()
    store = Picky(clock=clock)
    recorder = Recorder(store, "agent", clock)
    for reason in ("Ready", "Poison", "Silent"):
        recorder.note(make_node("n1"), reason, "a sentence")
    await recorder.flush()
    await recorder.flush()
    assert sorted(event.spec.reason for event in await events(store)) == ["Ready", "Silent"]
    assert not recorder.waiting


async def test_a_store_that_is_down_gets_its_events_later() -> None:
    class Down(MemoryStore):
        down = True

        async def commit(self, *writes: Write) -> int:
            if self.down:
                raise Unavailable("down")
            return await super().commit(*writes)

    clock = ManualClock()
    store = Down(clock=clock)
    recorder = Recorder(store, "agent", clock)
    running = asyncio.create_task(recorder.run())
    recorder.note(make_node("n1"), "Ready", "n1 is ready")
    await clock.advance(60)
    assert await events(store) == []
    store.down = False
    await clock.advance(60)
    assert [event.spec.reason for event in await events(store)] == ["Ready"]
    recorder.note(make_node("n1"), "Ready", "n1 is ready")
    await clock.advance(5)
    assert [event.spec.count for event in await events(store)] == [2]
    running.cancel()
    await asyncio.wait({running})


async def test_an_event_that_was_deleted_is_written_again() -> None:
    clock = ManualClock()

    class Clearing(MemoryStore):
        cleared = False

        async def commit(self, *writes: Write) -> int:
            if not self.cleared:
                self.cleared = True
                (write,) = writes
                assert isinstance(write, Put)
                await super().commit(Put(write.value))  # another server writes the same event first
            return await super().commit(*writes)

    store = Clearing(clock=clock)
    recorder = Recorder(store, "agent", clock)
    recorder.note(make_node("n1"), "Ready", "n1 is ready")
    await recorder.flush()
    assert [event.spec.count for event in await events(store)] == [2]
    await settle()
