"""Volumes in a whole control plane: instances follow their data through crashes, losses and returns."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.volume import Volume, VolumeSpec
from mandor.model.workload import Workload
from mandor.store.base import Put, Write
from mandor.store.memory import MemoryStore
from tests.scenarios.make import make_workload
from tests.scenarios.world import World

DATA = {"data": {"size": "10Gi", "per_instance": True}}
SHARED = {"data": {"size": "10Gi"}}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        made.checks = [made.check_capacity, made.check_count, made.check_volumes]
        yield made


def volume(world: World, name: str) -> Volume:
    found = world.find(Volume, name)
    assert found is not None, f"there is no volume {name}: {[each.meta.name for each in world.all(Volume)]}"
    return found


async def running(world: World, name: str, count: int) -> None:
    await world.until(lambda: sum(each.phase is Phase.RUNNING for each in world.instances(name)) == count)


class Stalling(MemoryStore):
    """A store on which binds wait while `stalls` is set."""

    def __init__(self, world: World) -> None:
        super().__init__(clock=world.clock)
        self.index = world.store.index
        self.stalls = True
        self.reached = asyncio.Event()

    async def commit(self, *writes: Write) -> int:
        if self.stalls and any(isinstance(each, Put) and _binds(each) for each in writes):
            self.reached.set()
            await asyncio.Event().wait()
        return await super().commit(*writes)


def _binds(write: Put) -> bool:
    return isinstance(write.value, Instance) and bool(write.value.spec.node)


@pytest.mark.req("S2-37", "S2-38", "S2-39")
async def test_each_instance_has_a_volume_of_its_own_and_its_successor_gets_it(world: World) -> None:
    await world.add_nodes("n1", "n2", "n3")
    await world.apply(make_workload(replicas=3, volumes=DATA))
    await running(world, "web", 3)
    before = {each.meta.name: each.node for each in world.instances()}
    assert {name: volume(world, f"data-{name}").node for name in before} == before
    assert all(volume(world, f"data-{name}").status.used_by == (name,) for name in before)

    for name in before:
        await world.stop_instance(name)
    await world.run(2)
    await running(world, "web", 3)

    assert {each.meta.name: each.node for each in world.instances()} == before


@pytest.mark.req("S2-37")
async def test_instances_that_share_a_volume_share_its_node(world: World) -> None:
    await world.add_nodes("n1", "n2", "n3")
    await world.apply(make_workload(replicas=5, cpu="500m", volumes=SHARED))
    await running(world, "web", 5)
    assert len({each.node for each in world.instances()}) == 1
    assert volume(world, "data-web").status.used_by == tuple(f"web-{index}" for index in range(5))


@pytest.mark.req("S1-23", "S3-11")
async def test_an_instance_that_does_not_fit_the_node_of_its_volume_waits_with_the_nodes_name(world: World) -> None:
    await world.add_nodes("n1", "n2", cpu=1)
    await world.apply(make_workload(replicas=3, cpu="500m", volumes=SHARED))
    await running(world, "web", 2)
    await world.run(2)
    (waiting,) = [each for each in world.instances() if each.phase is Phase.PENDING]
    there = volume(world, "data-web").node
    assert f"its volume data-web is on {there}" in waiting.status.message
    assert "short of 500m cpu" in waiting.status.message


@pytest.mark.req("S1-23")
async def test_a_crash_between_prebind_and_bind_loses_nothing(world: World) -> None:
    await world.add_nodes("n1", "n2", "n3")
    await world.run(2)
    stalling = Stalling(world)
    await world.kill("scheduler")
    world.scheduler_store = stalling
    world.start_scheduler()
    await world.apply(make_workload(replicas=2, volumes=DATA))
    await world.until(stalling.reached.is_set)
    before = {each.meta.name: (each.meta.uid, each.node) for each in world.all(Volume)}
    assert before
    assert not any(each.node for each in world.instances())

    await world.kill("scheduler")
    stalling.stalls = False
    world.start_scheduler()
    await running(world, "web", 2)

    after = {each.meta.name: (each.meta.uid, each.node) for each in world.all(Volume)}
    assert {name: after[name] for name in before} == before
    assert all(volume(world, f"data-{each.meta.name}").node == each.node for each in world.instances())


@pytest.mark.req("S1-23")
async def test_a_volume_with_nothing_in_it_moves_when_its_node_takes_nothing_any_more(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.run(2)
    stalling = Stalling(world)
    await world.kill("scheduler")
    world.scheduler_store = stalling
    world.start_scheduler()
    await world.apply(make_workload(volumes=DATA))
    await world.until(stalling.reached.is_set)
    chosen = volume(world, "data-web-0").node
    await world.kill("scheduler")
    await world.change_node(chosen, cordoned=True)
    stalling.stalls = False
    world.start_scheduler()
    await running(world, "web", 1)
    assert world.instance("web-0").node != chosen
    assert volume(world, "data-web-0").node == world.instance("web-0").node


@pytest.mark.req("S3-10", "S3-11", "S2-50")
async def test_a_lost_instance_waits_for_its_data_and_returns_with_its_node(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload(volumes=DATA))
    await running(world, "web", 1)
    before = world.instance("web-0")
    world.nodes[before.node].alive = False
    await world.until(lambda: world.instance("web-0").phase is Phase.LOST)
    await world.run(120)
    lost = world.instance("web-0")
    assert (lost.meta.uid, lost.phase) == (before.meta.uid, Phase.LOST)
    assert "its volumes (data-web-0) are on that node" in lost.status.message
    assert volume(world, "data-web-0").status.phase == "Lost"
    assert before.node in volume(world, "data-web-0").status.message

    world.nodes[before.node].alive = True
    await running(world, "web", 1)
    assert world.instance("web-0").meta.uid == before.meta.uid
    assert volume(world, "data-web-0").status.phase == "Bound"


@pytest.mark.req("S3-11")
async def test_an_instance_that_may_start_empty_gets_an_empty_volume_elsewhere(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload(volumes={"data": {"per_instance": True, "on_loss": "recreate"}}))
    await running(world, "web", 1)
    before = world.instance("web-0")
    world.nodes[before.node].alive = False
    await world.until(lambda: world.instance("web-0").phase is Phase.RUNNING and world.instance("web-0") != before)
    await world.until(lambda: world.instance("web-0").node not in {"", before.node})
    found = volume(world, "data-web-0")
    assert (found.status.incarnation, found.node) == (1, world.instance("web-0").node)
    assert world.events("Recreated")


async def test_deleting_a_lost_volume_sets_its_instance_free(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload(volumes=DATA))
    await running(world, "web", 1)
    before = world.instance("web-0")
    world.nodes[before.node].alive = False
    await world.until(lambda: volume(world, "data-web-0").status.phase == "Lost")
    await world.delete(volume(world, "data-web-0"))
    await world.until(lambda: world.instance("web-0").phase is Phase.RUNNING)
    assert world.instance("web-0").node != before.node
    assert volume(world, "data-web-0").node == world.instance("web-0").node


async def test_a_volume_is_kept_when_its_workload_goes_and_found_again(world: World) -> None:
    await world.add_nodes("n1", "n2", "n3")
    await world.apply(make_workload(volumes=DATA))
    await running(world, "web", 1)
    kept = volume(world, "data-web-0")
    await world.delete(world.workload("web"))
    await world.until(lambda: not world.instances())
    await world.run(60)
    assert volume(world, "data-web-0").meta.uid == kept.meta.uid
    assert volume(world, "data-web-0").status.used_by == ()
    await world.apply(make_workload(volumes=DATA))
    await running(world, "web", 1)
    assert world.instance("web-0").node == kept.node


async def test_a_volume_that_is_to_be_reclaimed_goes_with_its_workload(world: World) -> None:
    await world.add_nodes("n1")
    await world.apply(make_workload(replicas=2, volumes={"data": {"per_instance": True, "reclaim": "delete"}}))
    await running(world, "web", 2)
    await world.delete(world.workload("web"))
    await world.until(lambda: not world.instances() and not world.all(Volume))


async def test_a_volume_made_beforehand_is_waited_for_and_placed_by_its_own_rules(world: World) -> None:
    await world.add_nodes("n1", "n2", "n3")
    await world.apply(make_workload(volumes={"data": {"volume": "shop"}}))
    await world.until(lambda: any("there is no volume shop" in each.status.message for each in world.instances()))
    await world.store.commit(Put(Volume(meta=Meta(name="shop", namespace="default"), spec=VolumeSpec(node="n2"))))
    await running(world, "web", 1)
    assert world.instance("web-0").node == "n2"
    assert volume(world, "shop").status.used_by == ("web-0",)


async def test_a_gang_with_volumes_is_bound_whole_each_where_its_data_is(world: World) -> None:
    await world.add_nodes("n1", "n2", "n3", cpu=1)
    gang = make_workload(replicas=3, cpu="600m", gang={"min": 3}, volumes=DATA)
    await world.apply(gang)
    await running(world, "web", 3)
    before = {each.meta.name: each.node for each in world.instances()}
    assert {name: volume(world, f"data-{name}").node for name in before} == before
    for name in before:
        await world.stop_instance(name)
    await world.run(2)
    await running(world, "web", 3)
    assert {each.meta.name: each.node for each in world.instances()} == before


async def test_a_volume_of_another_workload_is_not_taken(world: World) -> None:
    """`web` with an instance 0 and `web-0` that shares: both would call theirs data-web-0."""
    await world.add_nodes("n1")
    await world.apply(make_workload("web", volumes=DATA))
    await running(world, "web", 1)
    await world.apply(make_workload("web-0", volumes=SHARED))
    await world.until(
        lambda: any("belongs to the workload web" in each.status.message for each in world.instances("web-0"))
    )


@pytest.mark.req("S3-11", "S1-17")
@pytest.mark.parametrize("seed", range(6))
async def test_no_volume_is_ever_on_two_nodes_whatever_happens(world: World, seed: int) -> None:
    """Nodes come and go, instances are stopped, counts change, the scheduler is killed: `check_volumes` always holds,
    and no instance ever begins where its data is not."""
    chance = random.Random(seed)
    await world.add_nodes("n1", "n2", "n3", "n4")
    homes: dict[str, tuple[str, str]] = {}

    def stays() -> None:
        for each in world.all(Volume):
            if each.status.path:
                assert homes.setdefault(each.meta.uid, (each.meta.name, each.node)) == (each.meta.name, each.node)

    world.checks.append(stays)
    own: dict[str, Any] = {"cpu": "500m", "volumes": DATA}
    for _ in range(25):
        match chance.randrange(6):
            case 0:
                await world.apply(make_workload("web", replicas=chance.randrange(6), **own))
            case 1:
                await world.apply(make_workload("db", replicas=chance.randrange(4), cpu="500m", volumes=SHARED))
            case 2:
                node = world.nodes[chance.choice(sorted(world.nodes))]
                node.alive = not node.alive
            case 3 if world.instances():
                picked = chance.choice(world.instances())
                if not picked.phase.over and picked.spec.stop is None:
                    await world.stop_instance(picked.meta.name)
            case 4:
                await world.kill("scheduler")
                world.start_scheduler()
            case _:
                node_object = world.store.index.get(Key(Node.kind, "", chance.choice(sorted(world.nodes))))
                assert isinstance(node_object, Node)
                await world.change_node(node_object.meta.name, cordoned=not node_object.spec.cordoned)
        await world.run(chance.choice([0.5, 1, 5, 30]))
    for name, each in world.nodes.items():
        each.alive = True
        await world.change_node(name, cordoned=False)
    wanted = sum(each.spec.groups["main"].count for each in world.all(Workload))
    await world.until(lambda: sum(each.phase is Phase.RUNNING for each in world.instances()) == wanted)
