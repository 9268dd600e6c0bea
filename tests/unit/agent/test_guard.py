"""The guard: which instances it stops, when, and what it writes for the next agent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.agent.guard import GIVE_UP_SECONDS, LATE_SECONDS, LOOK_SECONDS, REPEAT_SECONDS, Guard
from mandor.agent.journal import Journal, LastContact
from mandor.agent.order import Entry, Memory, TaskMemory
from mandor.engines.base import Launch, Unit, UnitPhase
from mandor.engines.fake.engine import FakeEngine
from mandor.lib.clock import ManualClock
from mandor.lib.quantity import NEVER, SecondsOrNever
from mandor.model.instance import InstanceStatus
from mandor.model.phase import Phase
from tests.unit.agent.make import make_order

BOOT = "boot-1"
LIMIT = SecondsOrNever(60)
GRACE = 5.0
MAIN = Unit("u-1", "main", 1)
TASKS = {"main": {"command": ["run"], "stop": {"grace": "5s"}}}


class Post:
    """A node without an agent: its journal, its engine and a manual clock."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.journal = Journal(folder)
        self.engine = FakeEngine(self.clock)
        self.journal.touch(LastContact(BOOT, self.clock.monotonic()))
        self.guard = self.relief()

    def relief(self) -> Guard:
        return Guard(self.journal, lambda name: {"fake": self.engine}[name], self.clock, BOOT)

    async def run(self, unit: Unit = MAIN, limit: SecondsOrNever = LIMIT, **options: object) -> None:
        order = make_order(TASKS, uid=unit.uid, stop_after=limit)
        memory = Memory(engine="fake", tasks={unit.task: TaskMemory(attempt=unit.attempt)})
        self.journal.write(Entry(order=order, memory=memory))
        await self.engine.start(unit, Launch(name=unit.uid, options=options))

    async def watch(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK_SECONDS)):
            await self.look()
            await self.clock.advance(LOOK_SECONDS)
        await self.look()

    async def look(self) -> None:
        """And let what was begun take its course."""
        self.guard.look()
        for _ in range(10):
            await asyncio.sleep(0)

    async def runs(self, unit: Unit = MAIN) -> bool:
        return any(each.unit == unit and each.phase is UnitPhase.RUNNING for each in await self.engine.list())

    def ending(self, uid: str = MAIN.uid) -> InstanceStatus | None:
        entry = self.journal.peek(uid)
        return entry.memory.ending if entry is not None else None


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


@pytest.mark.req("S0-25")
async def test_an_instance_is_stopped_when_its_stop_after_is_exceeded(post: Post) -> None:
    await post.run()
    await post.watch(LIMIT)
    assert await post.runs()
    await post.watch(LATE_SECONDS + 2)
    assert not await post.runs()
    ending = post.ending()
    assert ending is not None
    assert (ending.phase, ending.reason) == (Phase.STOPPED, "Disconnected")


async def test_an_instance_without_stop_after_is_left_alone(post: Post) -> None:
    await post.run(limit=NEVER)
    await post.watch(3 * LIMIT)
    assert await post.runs()
    assert post.ending() is None


async def test_contact_of_the_agent_with_the_control_plane_keeps_the_instance_running(post: Post) -> None:
    await post.run()
    for _ in range(5):
        await post.watch(30)
        post.journal.touch(LastContact(BOOT, post.clock.monotonic()))
    assert await post.runs()


async def test_a_stop_ends_when_the_grace_does_counted_from_the_deadline(post: Post) -> None:
    await post.run(ignore_stop=True)
    await post.watch(LIMIT + GRACE + LOOK_SECONDS)
    assert not await post.runs()


async def test_after_a_long_suspend_of_the_machine_there_is_no_grace_left(post: Post) -> None:
    await post.run(ignore_stop=True)
    await post.clock.advance(3600)
    await post.watch(LOOK_SECONDS)
    assert not await post.runs()


@pytest.mark.req("S0-25")
async def test_a_start_that_arrives_late_is_stopped_too(post: Post) -> None:
    await post.run()
    await post.watch(LIMIT + LATE_SECONDS + 2)
    late = Unit(MAIN.uid, "main", 2)
    await post.run(late)
    assert await post.runs(late)
    await post.watch(REPEAT_SECONDS + 2)
    assert not await post.runs(late)


async def test_a_failed_stop_is_retried_and_delays_no_other_instance(post: Post) -> None:
    other = Unit("u-2", "main", 1)
    await post.run(hang_stop=True)
    await post.run(other)
    await post.watch(LIMIT + LATE_SECONDS + 2)
    assert not await post.runs(other)
    third = Unit("u-3", "main", 1)
    await post.run(third)
    post.engine.down()
    await post.watch(5)
    post.engine.up()
    await post.watch(3)
    assert not await post.runs(third)


async def test_a_new_guard_continues_with_the_last_contact_of_the_journal(post: Post) -> None:
    await post.run()
    await post.watch(LIMIT - 1)
    post.guard = post.relief()
    await post.watch(LATE_SECONDS + 3)
    assert not await post.runs()


async def test_the_contact_of_an_earlier_boot_is_ignored(post: Post) -> None:
    post.journal.touch(LastContact("boot-0", post.clock.monotonic() + 10_000))
    post.guard = post.relief()
    await post.run()
    await post.watch(LIMIT + LATE_SECONDS + 2)
    assert not await post.runs()


async def test_an_ending_in_the_journal_is_not_replaced(post: Post) -> None:
    await post.run()
    entry = post.journal.peek(MAIN.uid)
    assert entry is not None
    failed = InstanceStatus(phase=Phase.FAILED, reason="Error")
    post.journal.write(msgspec.structs.replace(entry, memory=msgspec.structs.replace(entry.memory, ending=failed)))
    await post.watch(LIMIT + LATE_SECONDS + 2)
    assert not await post.runs()
    assert post.ending() == failed


async def test_the_guard_is_idle_when_no_instance_is_left_to_stop(post: Post) -> None:
    assert post.guard.idle
    await post.run()
    await post.watch(1)
    assert not post.guard.idle
    await post.watch(LIMIT + LATE_SECONDS + 2)
    assert not post.guard.idle
    await post.clock.advance(GIVE_UP_SECONDS)
    await post.watch(2)
    assert post.guard.idle


async def test_an_unreadable_journal_entry_is_neither_changed_nor_forgotten(post: Post, tmp_path: Path) -> None:
    await post.run()
    await post.watch(1)
    (damaged,) = (tmp_path / "orders").glob("*.json")
    damaged.write_bytes(b"{")
    await post.watch(LIMIT + LATE_SECONDS + 2)
    assert not await post.runs()
    assert damaged.read_bytes() == b"{"


@settings(max_examples=15, deadline=None)
@given(beats=st.lists(st.integers(1, 40), max_size=6), limit=st.integers(3, 30))
async def test_an_instance_is_stopped_shortly_after_its_deadline_and_never_before(
    tmp_path_factory: pytest.TempPathFactory, beats: list[int], limit: int
) -> None:
    """Whatever the intervals between contacts: the instance is stopped shortly after the first that is too long."""
    post = Post(tmp_path_factory.mktemp("post"))
    await post.run(limit=SecondsOrNever(limit))
    for pause in beats:
        await post.watch(pause)
        assert await post.runs() == (pause < limit + LATE_SECONDS)
        if not await post.runs():
            break
        post.journal.touch(LastContact(BOOT, post.clock.monotonic()))
