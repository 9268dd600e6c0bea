"""The runner: retries, reports and fatal errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

import pytest

from mandor.controllers.base import Controller
from mandor.controllers.runner import TURN, run
from mandor.controllers.writer import Writer, split
from mandor.errors import Conflict, Invalid, MandorError, Unavailable
from mandor.lib.clock import ManualClock, settle
from mandor.model.meta import Key, Meta
from mandor.model.node import Node
from mandor.store.base import Change, Check, Delete, Put
from mandor.store.fence import FencedStore
from mandor.store.memory import MemoryStore
from mandor.store.mirror import Mirror


class Counting(Controller[str]):
    name = "counting"
    watches = (Node.kind,)

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.errors: list[BaseException] = []
        self.again: float | None = None
        self.busy: set[str] = set()
        self.hold: asyncio.Event | None = None

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self.nodes = mirrors[Node.kind]

    def first(self) -> Iterable[str]:
        return ("first",)

    def observe(self, change: Change) -> Iterable[str]:
        return (change.value.meta.name,)

    async def reconcile(self, key: str) -> float | None:
        assert self.nodes.complete, "nothing is reconciled before everything is known"
        assert key not in self.busy, "one key, one worker"
        self.busy.add(key)
        try:
            self.calls.append(key)
            if self.hold is not None:
                await self.hold.wait()
            if self.errors:
                raise self.errors.pop(0)
            return self.again
        finally:
            self.busy.discard(key)


@asynccontextmanager
async def running(controller: Counting, store: MemoryStore, clock: ManualClock) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(run(controller, store, clock))
    await settle(100)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def put(store: MemoryStore, name: str) -> None:
    stored = await store.get(Key(Node.kind, "", name))
    await store.commit(Put(stored if stored is not None else Node(meta=Meta(name=name))))


async def test_other_tasks_run_while_many_keys_are_reconciled() -> None:
    store, clock, controller = MemoryStore(), ManualClock(), Counting()
    async with running(controller, store, clock):
        await store.commit(*(Put(Node(meta=Meta(name=f"n{number}"))) for number in range(100)))
        most, before = 0, len(controller.calls)
        while len(controller.calls) < 101:
            await asyncio.sleep(0)
            most, before = max(most, len(controller.calls) - before), len(controller.calls)
        assert most <= TURN * controller.workers


async def test_every_object_is_reconciled_at_the_start_and_after_every_change() -> None:
    store, clock, controller = MemoryStore(), ManualClock(), Counting()
    await put(store, "a")
    async with running(controller, store, clock):
        assert sorted(controller.calls) == ["a", "first"]
        await put(store, "b")
        await put(store, "a")
        await settle(100)
        assert controller.calls[2:] == ["b", "a"]


async def test_a_key_that_changes_while_it_is_handled_is_handled_once_more() -> None:
    store, clock, controller = MemoryStore(), ManualClock(), Counting()
    controller.hold = asyncio.Event()
    async with running(controller, store, clock):
        for _ in range(5):
            await put(store, "a")
            await settle(100)
        assert controller.calls.count("a") == 1
        controller.hold.set()
        await settle(100)
        assert controller.calls.count("a") == 2


async def test_a_key_can_be_reconciled_again_after_a_delay() -> None:
    store, clock, controller = MemoryStore(), ManualClock(), Counting()
    controller.again = 10
    async with running(controller, store, clock):
        await clock.advance(9)
        assert controller.calls == ["first"]
        await clock.advance(21)
        assert controller.calls == ["first"] * 4


@pytest.mark.parametrize(
    ("error", "seconds"), [(Conflict("moved on"), 0.02), (Unavailable("down"), 0.5)], ids=["conflict", "unavailable"]
)
async def test_an_expected_error_is_tried_again_after_a_pause_that_grows(error: MandorError, seconds: float) -> None:
    store, clock, controller = MemoryStore(), ManualClock(), Counting()
    controller.errors = [error, error]
    async with running(controller, store, clock):
        assert len(controller.calls) == 1
        await clock.advance(seconds)
        assert len(controller.calls) == 2
        await clock.advance(seconds)
        assert len(controller.calls) == 2
        await clock.advance(seconds)
        assert len(controller.calls) == 3
        await clock.advance(1000)
        assert len(controller.calls) == 3, "then all is well"


async def test_an_error_that_cannot_be_retried_is_not_retried(caplog: pytest.LogCaptureFixture) -> None:
    store, clock, controller = MemoryStore(), ManualClock(), Counting()
    controller.errors = [Invalid("never")]
    async with running(controller, store, clock):
        await clock.advance(1000)
        assert controller.calls == ["first"]
    assert "never" in caplog.text


async def test_an_unexpected_error_ends_the_runner() -> None:
    store, clock, controller = MemoryStore(), ManualClock(), Counting()
    controller.errors = [ZeroDivisionError("a bug")]
    async with running(controller, store, clock) as task:
        assert task.done()
        with pytest.raises(ExceptionGroup) as caught:
            task.result()
        assert caught.group_contains(ZeroDivisionError, depth=None)


# Writing.


def nodes(count: int) -> list[Put]:
    return [Put(Node(meta=Meta(name=f"n{index}"))) for index in range(count)]


def test_writes_are_split_by_the_stores_bound() -> None:
    assert [len(chunk) for chunk in split(nodes(250))] == [100, 100, 50]


async def test_the_mirror_shows_the_writes_when_the_writer_returns() -> None:
    store = MemoryStore()
    async with Mirror(store, Node.kind) as mirror:
        writer = Writer(store, {Node.kind: mirror})
        await writer.commit(nodes(250))
        assert len(list(mirror.items())) == 250


async def test_after_a_conflict_the_mirror_shows_the_earlier_commits() -> None:
    store = MemoryStore()
    await put(store, "old")
    stale = Put(Node(meta=Meta(name="old", version=99)))
    async with Mirror(store, Node.kind) as mirror:
        with pytest.raises(Conflict):
            await Writer(store, {Node.kind: mirror}).commit([*nodes(100), stale, *nodes(250)[100:]])
        assert len(list(mirror.items())) == 101, "the first hundred, and the one in the way"


async def test_objects_created_concurrently_with_a_conflict_remain() -> None:
    store = MemoryStore()
    await put(store, "n120")
    async with Mirror(store, Node.kind) as mirror:
        with pytest.raises(Conflict):
            await Writer(store, {Node.kind: mirror}).commit(nodes(250))
        assert len(list(mirror.items())) == 151, "all but the second hundred, and the one in the way"


async def test_with_commit_each_a_conflict_skips_only_its_own_write() -> None:
    store = MemoryStore()
    for name in ("n3", "n120", "n121"):
        await put(store, name)
    assert await Writer(store, {}).commit_each(nodes(250)) == 3
    assert len((await store.list(Node.kind)).items) == 250
    assert (
        await Writer(store, {}).commit_each([Delete(Key(Node.kind, "", "n3"), 1), Delete(Key(Node.kind, "", "no"), 5)])
        == 1
    )


async def test_a_former_leader_writes_nothing() -> None:
    store = MemoryStore()
    fenced = FencedStore(store, Check(Key(Node.kind, "", "term"), 9))
    with pytest.raises(Conflict):
        await Writer(fenced, {}).commit_each(nodes(3))
    assert not (await store.list(Node.kind)).items
