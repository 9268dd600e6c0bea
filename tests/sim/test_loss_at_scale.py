"""A lost node with a thousand instances is routine, and many lost at once are taken for a broken network."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from mandor.controllers.node_plan import NodeTimes
from mandor.model.instance import Instance
from mandor.model.node import Node, NodePhase
from mandor.model.phase import Phase
from mandor.store.base import WRITES_MOST, Write
from mandor.store.memory import MemoryStore
from tests.scenarios.make import make_workload
from tests.scenarios.world import World


class Counting(MemoryStore):
    """Counts what is written of instances."""

    commits: list[int]

    async def commit(self, *writes: Write) -> int:
        revision = await super().commit(*writes)
        mine = sum(write.key.kind == Instance.kind for write in writes)
        if mine:
            self.commits.append(mine)
        return revision


@pytest.mark.req("S0-24", "S2-50")
async def test_a_thousand_instances_of_a_lost_node_are_back_elsewhere_without_a_storm() -> None:
    world = World()
    store = world.store = Counting(clock=world.clock)
    store.commits = []
    async with world:
        await world.add_nodes("big", cpu=1000)
        for number in range(10):
            await world.apply(make_workload(f"w{number}", replicas=100, cpu="1"))
        await world.until(lambda: _running(world) == 1000)
        assert {each.node for each in world.instances()} == {"big"}
        await world.add_nodes(*(f"n{number}" for number in range(20)), cpu=60)
        await world.run(5)
        world.nodes["big"].alive = False
        store.commits.clear()
        left: list[int] = [1000]
        world.checks.append(lambda: left.append(sum(each.node == "big" for each in world.instances())))
        await world.until(lambda: _running(world) == 1000 and "big" not in _places(world), seconds=300)
        # Lost, made anew, bound, Starting, Running: five writes for each, and none in vain.
        assert sum(store.commits) <= 5 * 1000 + 100
        assert max(store.commits) <= WRITES_MOST
        gone = [before - after for before, after in pairwise(left)]
        assert max(gone) <= NodeTimes().losses_most, "they are given up in portions"
        assert len(world.instances()) == 1000


def _running(world: World) -> int:
    return sum(each.phase is Phase.RUNNING for each in world.instances())


def _places(world: World) -> set[str]:
    return {each.node for each in world.instances()}


@pytest.mark.req("S0-24", "S2-44")
async def test_when_most_nodes_fall_silent_at_once_they_show_why_little_is_done_about_it() -> None:
    async with World() as world:
        names = [f"n{number}" for number in range(10)]
        await world.add_nodes(*names, cpu=4)
        await world.apply(make_workload("web", replicas=10, cpu="1"))
        await world.until(lambda: world.serving_count("web") == 10)
        for name in names[:7]:
            world.nodes[name].alive = False
        await world.run(75)
        told = {_node(world, name).status.reason for name in names[:7] if world.node_phase(name) is NodePhase.SUSPECT}
        assert len([name for name in names[:7] if world.node_phase(name) is NodePhase.DOWN]) <= 2
        assert told
        assert all(
            "most nodes of pool default send no heartbeats: at most one is marked Down every 30s" in each
            for each in told
        )
        (event,) = world.events("MassSilence")
        assert "7 of 10 nodes of pool default send no heartbeats" in event.spec.message
        for name in names[:7]:
            world.nodes[name].alive = True
        await world.run(10)
        assert _phases(world, names) == [NodePhase.READY] * 10
        assert not any(_node(world, name).status.reason for name in names)


def _node(world: World, name: str) -> Node:
    found = world.find(Node, name, "")
    assert found is not None
    return found


def _phases(world: World, names: Sequence[str]) -> list[NodePhase]:
    return [world.node_phase(name) for name in names]
