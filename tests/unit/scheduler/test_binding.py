"""Binds in batches: what shares a commit, and what a conflict costs the others."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from mandor.errors import Conflict
from mandor.lib.clock import ManualClock
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.binding import Binder, chunks
from mandor.sim.connection import StoreConnection
from mandor.store.base import Check, Put, Write
from mandor.store.fence import FencedStore
from mandor.store.memory import MemoryStore
from tests.scenarios.make import make_instance, make_node, make_template

SHAPE = Shape.of(make_template())


def make_attempt(instance: Instance, node: str, node_version: int) -> Attempt:
    attempt = Attempt(PlacementRequest(instance.key, SHAPE), instance.meta.uid, 0.0)
    attempt.assign(instance, node, node_version)
    return attempt


def stored(attempt: Attempt) -> Instance:
    assert attempt.instance is not None
    return attempt.instance


def fake_attempts(count: int, nodes: int, version: int = 1) -> list[Attempt]:
    return [make_attempt(make_instance(index, Phase.PENDING), f"n{index % nodes}", version) for index in range(count)]


@pytest.mark.parametrize(("count", "nodes"), [(1, 1), (101, 1), (100, 1), (200, 7), (500, 500), (3, 2)])
def test_a_commit_keeps_the_stores_bounds_with_a_check_for_each_node_and_the_fence(count: int, nodes: int) -> None:
    made = list(chunks(fake_attempts(count, nodes)))
    assert sum(map(len, made)) == count
    assert all(len(chunk) <= 100 and len(chunk) + len({each.node for each in chunk}) <= 127 for chunk in made)
    assert all(made), "no empty commit"


def test_binds_on_one_node_share_its_check() -> None:
    assert len(list(chunks(fake_attempts(200, 2)))) == 2, "two nodes, two checks in all"


def test_two_sights_of_one_node_never_share_a_commit() -> None:
    old, new = fake_attempts(2, 1, version=1), fake_attempts(2, 1, version=2)
    made = list(chunks([old[0], new[1]]))
    assert [len(chunk) for chunk in made] == [1, 1]


class Desk:
    """A store with nodes and pending instances, and what became of their binds."""

    def __init__(self) -> None:
        self.store = MemoryStore(clock=ManualClock())
        self.bound: list[str] = []
        self.failed: list[str] = []
        self.binder = Binder(
            self.store,
            ManualClock(),
            bound=lambda each: self.bound.append(each.key.name),
            failed=lambda each: self.failed.append(each.key.name),
        )

    async def attempts(self, *pairs: tuple[int, str]) -> list[Attempt]:
        for name in sorted({name for _, name in pairs}):
            await self.store.commit(Put(make_node(name)))
        made = []
        for index, name in pairs:
            fresh = make_instance(index, Phase.PENDING, version=0)
            await self.store.commit(
                Put(fresh.changed(meta=type(fresh.meta)(name=fresh.meta.name, namespace="default")))
            )
            stored = await self.instance(index)
            node = await self.node(name)
            made.append(make_attempt(stored, name, node.meta.version))
        return made

    async def instance(self, index: int) -> Instance:
        found = await self.store.get(Key(Instance.kind, "default", f"web-{index}"))
        assert isinstance(found, Instance)
        return found

    async def node(self, name: str) -> Node:
        found = await self.store.get(Key(Node.kind, "", name))
        assert isinstance(found, Node)
        return found


@pytest.mark.req("S0-25", "S0-26")
async def test_a_bind_is_recorded_with_node_and_phase() -> None:
    desk = Desk()
    await desk.binder.write(await desk.attempts((0, "n1"), (1, "n2")))
    assert [(await desk.instance(index)).node for index in (0, 1)] == ["n1", "n2"]
    assert (await desk.instance(0)).phase is Phase.RESERVED
    assert desk.bound == ["web-0", "web-1"]


async def test_a_node_that_changed_takes_its_own_binds_back_and_no_others() -> None:
    desk = Desk()
    attempts = await desk.attempts((0, "n1"), (1, "n2"), (2, "n1"))
    await desk.store.commit(Put(await desk.node("n1")))
    await desk.binder.write(attempts)
    assert (desk.bound, sorted(desk.failed)) == (["web-1"], ["web-0", "web-2"])
    assert [(await desk.instance(index)).node for index in (0, 1, 2)] == ["", "n2", ""]


async def test_an_instance_that_changed_is_taken_back_alone() -> None:
    desk = Desk()
    attempts = await desk.attempts((0, "n1"), (1, "n1"))
    await desk.store.commit(Put(stored(attempts[0]).stopping("scaled down")))
    await desk.binder.write(attempts)
    assert (desk.bound, desk.failed) == (["web-1"], ["web-0"])
    assert not (await desk.instance(0)).node


async def test_a_new_reason_to_wait_in_the_status_does_not_fail_the_bind() -> None:
    desk = Desk()
    attempts = await desk.attempts((0, "n1"), (1, "n1"))
    waiting = stored(attempts[0])
    status = structs.replace(waiting.status, reason="Nominated", message="takes the place of low-0 on n1")
    await desk.store.commit(Put(waiting.changed(status=status)))
    await desk.binder.write(attempts)
    assert (desk.bound, desk.failed) == (["web-0", "web-1"], [])
    assert (await desk.instance(0)).phase is Phase.RESERVED


async def test_a_bind_that_was_written_before_counts_as_bound() -> None:
    desk = Desk()
    attempts = await desk.attempts((0, "n1"))
    await desk.store.commit(Put(stored(attempts[0]).bound("n1", at=0.0)))
    await desk.binder.write(attempts)
    assert (desk.bound, desk.failed) == (["web-0"], [])


@pytest.mark.parametrize("whole", [False, True])
async def test_an_outage_just_after_a_lost_race_is_waited_out(whole: bool) -> None:
    desk = Desk()
    attempts = await desk.attempts((0, "n1"))
    await desk.store.commit(Put(stored(attempts[0]).stopping("scaled down")))
    connection, clock = StoreConnection(desk.store), ManualClock()

    async def commit(*writes: Write) -> int:
        connection.sends = False
        return await desk.store.commit(*writes)

    connection.commit = commit  # type: ignore[method-assign]
    failed: list[Attempt] = []
    binder = Binder(connection, clock, bound=lambda _: None, failed=failed.append)
    writing = asyncio.ensure_future(binder.write_whole(attempts) if whole else binder.write(attempts))
    await clock.advance(60)
    assert not writing.done()
    connection.mend()
    await clock.advance(60)
    await writing
    assert failed == attempts


async def test_a_scheduler_that_leads_no_more_binds_nothing() -> None:
    desk = Desk()
    attempts = await desk.attempts((0, "n1"))
    fence = Check(Key(Node.kind, "", "term"), 77)
    binder = Binder(FencedStore(desk.store, fence), ManualClock(), bound=lambda _: None, failed=lambda _: None)
    with pytest.raises(Conflict):
        await binder.write(attempts)
    assert not (await desk.instance(0)).node
