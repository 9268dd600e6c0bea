"""Gangs at work: all or nothing, whatever changes, fails or dies between the decision and the bind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from mandor.errors import Unavailable
from mandor.lib.clock import settle
from mandor.model.decision import DecisionRecord
from mandor.model.instance import Instance
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.placement.decision import Decision
from mandor.scheduler import gang_cycle
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.gang_cycle import GangCycle
from mandor.store.base import Put, Write
from tests.scenarios.make import make_group, make_workload
from tests.scenarios.world import World
from tests.sim.gangs import bound, gang


def binds(writes: Sequence[Write]) -> list[Instance]:
    return [
        write.value
        for write in writes
        if isinstance(write, Put) and isinstance(write.value, Instance) and write.value.phase is Phase.RESERVED
    ]


class Eavesdropper:
    """Sees every commit of the world's store, and may have something happen before one, or instead of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.binds: list[list[str]] = []
        self.before: Any = None
        self._commit = world.store.commit
        world.store.commit = self._hear  # type: ignore[method-assign]

    async def _hear(self, *writes: Write) -> int:
        found = binds(writes)
        if found and self.before is not None:
            await self.before(found)
        revision = await self._commit(*writes)
        if found:
            self.binds.append([each.meta.name for each in found])
        return revision


@pytest.mark.req("S0-10", "S1-16")
async def test_a_gang_is_bound_in_one_commit(world: World) -> None:
    heard = Eavesdropper(world)
    await world.add_nodes("n1", "n2", cpu=4)
    await world.run(2)
    await world.apply(gang(replicas=6))
    await world.until(lambda: world.serving_count("mpi") == 6)
    assert [sorted(names) for names in heard.binds] == [[f"mpi-{index}" for index in range(6)]]


@pytest.mark.parametrize("what", ["a node", "a member"])
async def test_what_changes_while_it_is_given_its_room_has_the_whole_gang_decided_again(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(gang_cycle, "TAKEN", 1)
    heard, looked, facts = Eavesdropper(world), 0, GangCycle._facts
    waiting: list[asyncio.Task[int]] = []

    def look(cycle: GangCycle, attempt: Attempt, decision: Decision) -> tuple[object, ...]:
        nonlocal looked
        looked += 1
        if looked == 12 + 3:  # all of them before it begins, and then one after another
            node = next(each for each in world.all(Node) if each.meta.name == decision.node)
            member = world.instance("mpi-11")
            labels = node.changed(meta=structs.replace(node.meta, labels={"new": "label"}))
            change = Put(labels if what == "a node" else member.stopping("test", at=0.0))
            waiting.append(asyncio.create_task(world.store.commit(change)))
        return facts(cycle, attempt, decision)

    monkeypatch.setattr(GangCycle, "_facts", look)
    await world.add_nodes("n1", cpu=12)
    await world.run(2)
    await world.apply(gang(replicas=12))
    await world.until(lambda: world.serving_count("mpi") == 12)
    await asyncio.gather(*waiting)
    assert looked > 2 * 12
    assert [len(names) for names in heard.binds] == [12]


@pytest.mark.req("S0-35", "S1-7")
async def test_a_gang_that_does_not_fit_takes_nothing_and_shows_why(world: World) -> None:
    await world.add_nodes("n1", "n2", cpu=1)
    await world.run(2)
    await world.apply(gang())
    await world.run(30)
    assert bound(world) == []
    messages = {each.status.message for each in world.instances("mpi")}
    assert messages == {
        "the gang needs 3: 2 would fit; mpi-2 does not: 0/2 nodes fit: 2 NodeResourcesFit (short of 1 cpu)"
    }
    kept = [each.spec for each in world.all(DecisionRecord) if each.spec.workload == "mpi"]
    assert [each.message for each in kept] == list(messages)
    # The room it cannot use is left to others.
    await world.apply(make_workload("web", replicas=2, cpu="1"))
    await world.until(lambda: world.serving_count("web") == 2, seconds=15)


@pytest.mark.req("S1-33")
async def test_a_gang_is_placed_when_there_is_room_for_all_of_it(world: World) -> None:
    await world.add_nodes("n1", "n2", cpu=1)
    await world.apply(gang())
    await world.run(10)
    await world.add_nodes("n3", cpu=1)
    await world.until(lambda: world.serving_count("mpi") == 3, seconds=15)


async def test_members_beyond_the_least_wait_alone(world: World) -> None:
    await world.add_nodes("n1", cpu=4)
    await world.apply(gang(replicas=6, gang={"min": 3}))
    await world.until(lambda: world.serving_count("mpi") == 4, seconds=20)
    await world.run(10)
    waiting = [each for each in world.instances("mpi") if not each.node]
    assert len(waiting) == 2
    assert {each.status.message for each in waiting} == {"0/1 nodes fit: 1 NodeResourcesFit (short of 1 cpu)"}
    await world.add_nodes("n2", cpu=2)
    await world.until(lambda: world.serving_count("mpi") == 6, seconds=20)


async def test_a_gang_waits_for_members_that_do_not_exist_yet(world: World) -> None:
    """Two of three are created by hand, before their controller does."""
    await world.kill("controllers")
    await world.add_nodes("n1", cpu=8)
    node = world.find(Node, "n1", "")
    assert node is not None
    world.start_controllers()
    await world.until(lambda: world.node_phase("n1").value == "Ready")
    await world.apply(gang(replicas=2))
    await world.until(lambda: world.serving_count("mpi") == 2)
    await world.kill("controllers")
    # Now three are wanted together, and nobody makes the third.
    await world.stop_instance("mpi-0")
    await world.stop_instance("mpi-1")
    await world.run(5)
    await world.apply(gang(replicas=3))
    for name in ("mpi-0", "mpi-1"):
        old = world.instance(name)
        fresh = Instance(
            meta=old.meta.__class__(name=name, namespace="default", version=old.meta.version),
            spec=old.spec.__class__(workload="mpi", release=old.spec.release, index=old.spec.index),
        )
        await world.store.commit(Put(fresh))
    await world.run(5)
    assert {world.instance(name).status.message for name in ("mpi-0", "mpi-1")} == {"the gang has 2 of 3 members"}
    assert bound(world) == []

    world.start_controllers()
    await world.until(lambda: world.serving_count("mpi") == 3, seconds=20)


@pytest.mark.req("S0-25")
async def test_a_node_that_changes_between_decision_and_bind_takes_the_whole_gang_back(world: World) -> None:
    heard = Eavesdropper(world)
    await world.add_nodes("n1", "n2", cpu=2)
    await world.run(2)
    once: list[str] = []

    async def cordon(found: list[Instance]) -> None:
        assert len(found) == 3, "the gang is written together"
        if not once:
            once.append("n1")
            await world.change_node("n1", cordoned=True)

    heard.before = cordon
    await world.apply(gang())
    await world.run(20)
    assert bound(world) == []
    assert "would fit" in world.instance("mpi-0").status.message

    await world.change_node("n1", cordoned=False)
    await world.until(lambda: world.serving_count("mpi") == 3, seconds=15)
    assert [len(names) for names in heard.binds] == [3]


async def test_a_word_about_a_member_does_not_hold_the_gang_up(world: World) -> None:
    """A written reason changes the instance but not the decision."""
    heard = Eavesdropper(world)
    await world.add_nodes("n1", cpu=4)
    await world.run(2)
    told: list[str] = []

    async def tell(found: list[Instance]) -> None:
        if not told:
            told.append("x")
            now = world.instance("mpi-1")
            status = now.status.__class__(phase=Phase.PENDING, message="some word")
            await heard._commit(Put(now.changed(status=status)))

    heard.before = tell
    await world.apply(gang())
    await world.until(lambda: world.serving_count("mpi") == 3, seconds=5)
    assert [len(names) for names in heard.binds] == [3]


async def test_a_missing_answer_binds_no_instance_twice(world: World) -> None:
    heard = Eavesdropper(world)
    await world.add_nodes("n1", cpu=4)
    await world.run(2)
    lost: list[str] = []
    real = heard._commit

    async def lossy(*writes: Write) -> int:
        revision = await real(*writes)
        if binds(writes) and not lost:
            lost.append("answer")
            raise Unavailable("the connection broke")
        return revision

    heard._commit = lossy
    await world.apply(gang())
    await world.until(lambda: world.serving_count("mpi") == 3, seconds=20)


LARGE = 70
"""Each on a node of its own: more than one commit can check."""


async def large(world: World, spare: int = 0) -> None:
    await world.add_nodes(*(f"n{index}" for index in range(LARGE + spare)), cpu=1)
    await world.until(lambda: all(world.node_phase(name).value == "Ready" for name in world.nodes))


@pytest.mark.req("S1-7")
async def test_a_large_gang_is_written_in_pieces_and_a_refused_piece_is_decided_again(world: World) -> None:
    heard = Eavesdropper(world)
    await large(world, spare=1)
    seen: list[int] = []

    async def cordon(found: list[Instance]) -> None:
        seen.append(len(found))
        if len(seen) == 2:
            await world.change_node(found[0].node, cordoned=True)

    heard.before = cordon
    await world.apply(gang(replicas=LARGE))
    await world.until(lambda: world.serving_count("mpi") == LARGE, seconds=30)
    assert len(heard.binds) >= 2
    assert sum(map(len, heard.binds)) == LARGE


async def half_bound(world: World, **fields: Any) -> list[str]:
    """Return the bound members of a large gang whose scheduler died between two commits."""
    heard = Eavesdropper(world)
    await large(world)

    async def die(found: list[Instance]) -> None:
        if heard.binds:
            raise SystemError("died")

    heard.before = die
    await world.apply(gang(replicas=LARGE, **fields))
    for _ in range(60):
        await world.clock.advance(0.1)
        await settle(50)
        if heard.binds:
            break
    held = bound(world)
    assert 0 < len(held) < LARGE
    await _bury(world)
    heard.before = None
    return held


async def _bury(world: World) -> None:
    """The scheduler whose write raised has ended by itself."""
    task = world._tasks.pop("scheduler")
    for _ in range(20):
        if task.done():
            break
        await world.clock.advance(0.1)
        await settle(50)
    assert task.done()
    assert task.exception() is not None
    await world.kill("its recorder")


@pytest.mark.req("S0-18", "S0-25")
async def test_a_gang_half_bound_by_a_scheduler_that_died_is_completed(world: World) -> None:
    await half_bound(world)
    world.start_scheduler()
    await world.until(lambda: world.serving_count("mpi") == LARGE, seconds=30)


@pytest.mark.req("S0-18")
async def test_a_gang_half_bound_that_cannot_be_completed_is_given_back_after_its_timeout(world: World) -> None:
    held = await half_bound(world, gang={"timeout": "20s"})
    free = next(name for name in world.nodes if name not in {world.instance(each).node for each in held})
    await world.change_node(free, cordoned=True)
    world.start_scheduler()
    await world.run(15)
    assert bound(world) == held, "it has time"
    await world.until(lambda: not bound(world), seconds=30)
    await world.run(10)
    assert bound(world) == []
    assert world.events("GangReleased")
    assert "the gang was incomplete" in str([each.spec.message for each in world.events("GangReleased")])

    await world.change_node(free, cordoned=False)
    await world.until(lambda: world.serving_count("mpi") == LARGE, seconds=60)


@pytest.mark.req("S2-50")
async def test_a_gang_that_loses_a_node_is_completed_or_given_back(world: World) -> None:
    await world.add_nodes("n1", "n2", "n3", "n4", cpu=1)
    await world.apply(gang(gang={"timeout": "30s"}))
    await world.until(lambda: world.serving_count("mpi") == 3)
    lost = world.instance("mpi-0").node
    world.nodes[lost].alive = False
    await world.until(lambda: world.serving_count("mpi") == 3 and world.instance("mpi-0").node != lost, seconds=150)

    other = world.instance("mpi-1").node
    world.nodes[other].alive = False
    await world.until(lambda: not bound(world), seconds=200)
    await world.run(60)
    assert bound(world) == []

    world.nodes[other].alive = world.nodes[lost].alive = True
    await world.until(lambda: world.serving_count("mpi") == 3, seconds=60)


async def test_a_batch_gang_needs_no_more_than_is_left_of_it(world: World) -> None:
    from mandor.model.instance import InstanceStatus

    await world.add_nodes("n1", cpu=2)

    def finish(instance: Instance) -> InstanceStatus | None:
        if instance.phase is Phase.RUNNING:
            return InstanceStatus(phase=Phase.SUCCEEDED, since=world.clock.now())
        return None

    world.nodes["n1"].behave = finish
    batch = make_workload(
        "mpi", type="batch", batch={"completions": 3, "parallelism": 2}, gang={"min": 2, "timeout": "10s"}, cpu="1"
    )
    await world.apply(batch)
    await world.until(lambda: world.workload("mpi").status.phase == "Succeeded", seconds=60)


@pytest.mark.req("S3-23")
async def test_should_rules_are_given_up_for_all_members_at_once(world: World) -> None:
    await world.add_nodes("n1", cpu=4, labels={"disk": "ssd"})
    await world.add_nodes("n2", cpu=4)
    rule = {"where": [{"rule": "disk == ssd", "strength": "should"}]}
    await world.apply(gang(replicas=6, placement=rule))
    await world.until(lambda: world.serving_count("mpi") == 6)
    told = {each.spec.message.partition(", ")[2] for each in world.events("Scheduled")}
    assert told == {"without `disk == ssd`"}


async def test_scaling_down_and_deleting_a_waiting_gang_leaves_no_parked_attempt(world: World) -> None:
    await world.add_nodes("n1", cpu=2)
    await world.apply(gang(replicas=4))
    await world.run(5)
    await world.apply(gang(replicas=2))
    await world.until(lambda: world.serving_count("mpi") == 2, seconds=20)
    await world.delete(world.workload("mpi"))
    await world.until(lambda: not world.instances("mpi"), seconds=30)
    assert world.scheduler is not None
    assert len(world.scheduler.view.queue) == 0


async def test_a_leader_that_goes_away_hands_over(world: World) -> None:
    """When the count shrinks, the member that held the attempt may be the one that is removed."""
    await world.add_nodes("n1", cpu=3)
    await world.apply(gang(replicas=5, gang={"min": 4}))
    await world.run(5)
    assert bound(world) == []
    await world.delete(world.instance("mpi-3"))
    await world.run(10)
    await world.add_nodes("n2", cpu=2)
    await world.until(lambda: world.serving_count("mpi") == 5, seconds=20)


async def test_two_gangs_do_not_hold_half_of_the_cluster_each(world: World) -> None:
    """The classic deadlock: each has half of what it needs, and neither can go on."""
    await world.add_nodes("n1", "n2", "n3", "n4", cpu=1)
    await world.run(2)
    await world.apply(gang("a", replicas=3))
    await world.apply(gang("b", replicas=3))
    await world.until(lambda: {world.serving_count("a"), world.serving_count("b")} == {0, 3}, seconds=20)
    first = "a" if world.serving_count("a") else "b"
    await world.delete(world.workload(first))
    second = "b" if first == "a" else "a"
    await world.until(lambda: world.serving_count(second) == 3, seconds=30)


async def test_a_gang_near_itself_is_placed_in_the_rack_that_has_room(world: World) -> None:
    await world.add_nodes("s1", "s2", cpu=1, labels={"rack": "small"})
    await world.add_nodes("l1", "l2", "l3", cpu=1, labels={"rack": "large"})
    await world.apply(gang(replicas=4, placement={"near": [{"workload": "self", "over": "rack"}]}))
    await world.run(5)
    assert bound(world) == []
    message = world.instance("mpi-0").status.message
    assert "the gang needs 4 in one rack: the largest rack, large, has room for 3 of 4; mpi-3 does not fit" in message
    await world.add_nodes("l4", cpu=1, labels={"rack": "large"})
    await world.until(lambda: len(bound(world)) == 4, seconds=30)
    assert {each.node for each in world.instances("mpi")} == {"l1", "l2", "l3", "l4"}


async def test_the_gangs_of_two_groups_get_a_rack_that_holds_both(world: World) -> None:
    for rack, size in (("a", 2), ("b", 4), ("c", 5)):
        await world.add_nodes(*(f"{rack}{index}" for index in range(size)), cpu=1, labels={"rack": rack})
    near = {"near": [{"workload": "train", "over": "rack"}]}
    groups = {
        name: make_group(cpu="1", replicas=count, gang={}, placement=near)
        for name, count in (("launcher", 1), ("worker", 4))
    }
    workload = make_workload("train")
    await world.apply(workload.changed(spec=structs.replace(workload.spec, groups=groups)))
    await world.until(lambda: len(bound(world, "train")) == 5, seconds=30)
    assert {each.node[0] for each in world.instances("train")} == {"c"}
