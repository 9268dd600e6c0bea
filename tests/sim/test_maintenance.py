"""Maintenance windows: nodes are drained one after another without loss of ready instances."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mandor.model.codec import from_plain
from mandor.model.meta import Meta
from mandor.model.node import Node
from mandor.model.pool import NodePool, NodePoolSpec
from mandor.store.base import Put
from tests.scenarios.make import make_workload
from tests.scenarios.world import World


def in_turn(world: World) -> set[str]:
    return {node.meta.name for node in world.all(Node) if node.status.maintenance is not None}


@pytest.mark.req("S0-20")
async def test_in_its_window_a_pool_is_emptied_node_by_node_and_everyone_serves_on() -> None:
    async with World() as world:
        world.checks = [world.check_capacity]
        await world.add_nodes("n1", "n2", "n3", cpu=4)
        await world.apply(make_workload("web", replicas=6, cpu="1", disruption={"max_unavailable": 0}))
        await world.until(lambda: world.serving_count("web") == 6)
        opens = world.clock.now() - world.clock.now() % 3600 + 3600
        spec = {"maintenance": [{"cron": "0 * * * *", "duration": "30m", "each": "2m", "drain": "3m"}]}
        await world.store.commit(Put(NodePool(meta=Meta(name="default"), spec=from_plain(spec, NodePoolSpec))))
        await world.run(opens - world.clock.now() - 2, step=5)
        assert not in_turn(world)
        turns: list[set[str]] = []
        world.checks += [
            lambda: turns.append(in_turn(world)),
            lambda: _serves(world, 6),
            lambda: _is_empty_when_it_says_so(world),
        ]
        await world.run(1200, step=1)
        assert {name for each in turns for name in each} == {"n1", "n2", "n3"}
        assert max(map(len, turns)) == 1
        pool = world.find(NodePool, "default", "")
        assert pool is not None
        assert pool.status.done == ("n1", "n2", "n3")
        assert not pool.status.left_out
        assert not in_turn(world)
        assert len(world.events("UnderMaintenance")) == 3
        await world.run(900, step=5)
        assert pool.status.next_at > opens
        assert all(node.status.drain is None and not node.closed for node in world.all(Node))


def _serves(world: World, count: int) -> None:
    assert world.serving_count("web") >= count


def _is_empty_when_it_says_so(world: World) -> None:
    for node in world.all(Node):
        if node.status.maintenance is not None and node.status.maintenance.empty_since:
            assert not [each for each in world.instances() if each.node == node.meta.name and not each.phase.over]


async def test_a_window_that_is_taken_away_gives_the_nodes_back() -> None:
    async with World() as world:
        await world.add_nodes("n1")
        spec = {"maintenance": [{"cron": "* * * * *", "duration": "10m", "each": "5m"}]}
        await world.store.commit(Put(NodePool(meta=Meta(name="default"), spec=from_plain(spec, NodePoolSpec))))
        await world.run(5)
        assert in_turn(world) == {"n1"}
        pool = world.find(NodePool, "default", "")
        assert pool is not None
        await world.delete(pool)
        await world.run(5)
        assert not in_turn(world)
        assert world.events("MaintenanceOver")


async def test_a_turn_that_is_ended_early_gives_the_node_back_and_passes_to_the_next() -> None:
    async with World() as world:
        await world.add_nodes("n1", "n2", cpu=4)
        await world.apply(make_workload("web", replicas=3, cpu="1"))
        await world.until(lambda: world.serving_count("web") == 3)
        spec = {"maintenance": [{"cron": "* * * * *", "duration": "10m", "each": "4m"}]}
        await world.store.commit(Put(NodePool(meta=Meta(name="default"), spec=from_plain(spec, NodePoolSpec))))
        await world.until(lambda: bool(world.events("UnderMaintenance")))
        [node] = [node for node in world.all(Node) if node.status.maintenance is not None]
        assert node.meta.name == "n1"
        turn = node.status.maintenance
        assert turn is not None
        await world.store.commit(Put(node.changed(spec=replace(node.spec, maintained=turn.window))))
        await world.until(lambda: in_turn(world) == {"n2"})
        assert any(
            "the maintenance was ended by a user" in each.spec.message for each in world.events("MaintenanceOver")
        )
        await world.until(lambda: {each.node for each in world.instances() if not each.phase.over} == {"n1"})
        assert in_turn(world) == {"n2"}
