"""Rebalance: a new node gets its share, start-first and within budgets, whatever happens; and then it rests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mandor.lib.quantity import Seconds
from mandor.lib.tasks import Background
from mandor.model.meta import Meta
from mandor.model.rebalance import Rebalance, RebalanceSpec
from tests.scenarios.make import make_workload
from tests.scenarios.world import World
from tests.sim.restoring import start_rebalance

STRICT = {"max_unavailable": 0}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made, Background() as tasks:
        made.checks = [made.check_capacity]
        start_rebalance(made, tasks)
        yield made


async def crowd(world: World, **fields: Any) -> None:
    """Eight on one node, and three more nodes that come too late."""
    await world.add_nodes("n0", cpu=8)
    await world.apply(make_workload("web", replicas=8, cpu="500m", memory="64Mi", disruption=STRICT, **fields))
    await world.until(lambda: world.serving_count("web") == 8)
    await world.run(5)
    await world.add_nodes("n1", "n2", "n3", cpu=8)
    await world.run(5)


async def order(world: World, name: str = "now", **fields: object) -> None:
    spec = RebalanceSpec(**fields)  # type: ignore[arg-type]
    await world.add(Rebalance(meta=Meta(name=name), spec=spec))


def found(world: World, name: str = "now") -> Rebalance:
    rebalance = world.find(Rebalance, name, "")
    assert rebalance is not None
    return rebalance


def by_node(world: World) -> Counter[str]:
    return Counter(each.node for each in world.instances("web"))


async def test_an_order_moves_the_few_that_gain_most_and_never_fewer_serve(world: World) -> None:
    await crowd(world)
    world.checks.append(lambda: _serve(world, 8))
    await order(world, moves=4, min_gain=5)
    await world.until(lambda: found(world).status.phase == "Done", seconds=600)
    status = found(world).status
    assert 0 < status.moved <= 4
    assert all(each.state == "Moved" for each in status.moves)
    assert by_node(world)["n0"] == 8 - status.moved
    assert len(world.instances("web")) == 8
    assert len(world.events("Moved")) == status.moved
    uids = {each.meta.uid for each in world.instances()}
    await world.run(300, step=2)
    assert {each.meta.uid for each in world.instances()} == uids, "an order is carried out once"


async def test_the_next_one_moves_when_the_one_before_it_has_been_healthy_for_long_enough(world: World) -> None:
    await crowd(world, update={"min_healthy": "90s"})
    await world.run(90)
    await order(world, moves=2, min_gain=5)
    began: dict[str, float] = {}
    """Time at which each replacement became ready."""
    ended: dict[str, float] = {}
    """Time at which each moved instance was ordered to stop."""

    def look() -> None:
        for each in world.instances("web"):
            if each.spec.instead_of and each.status.ready:
                began.setdefault(each.spec.instead_of, world.clock.now())
            if each.spec.stop is not None:
                ended.setdefault(each.meta.uid, world.clock.now())

    world.checks.append(look)
    await world.until(lambda: found(world).status.phase == "Done", seconds=900)
    assert found(world).status.moved == len(ended) == 2
    assert all(ended[uid] >= began[uid] + 89 for uid in ended)
    assert max(began.values()) >= min(ended.values()), "one after the other"


def _serve(world: World, wanted: int) -> None:
    ready = [each for each in world.instances("web") if each.status.ready and each.spec.stop is None]
    assert len(ready) >= wanted, "the budget lets none be missing"


async def test_a_rebalance_for_preferences_moves_instances_to_preferred_nodes_and_no_others(world: World) -> None:
    """The preferred node comes too late; the instances without preferences would gain by moving, too."""
    await world.add_nodes("n0", cpu=8)
    wish = {"where": [{"rule": "disk == ssd", "strength": "prefer", "weight": 50}]}
    await world.apply(make_workload("web", replicas=2, cpu="500m", disruption=STRICT, placement=wish))
    await world.apply(make_workload("calm", replicas=6, cpu="500m", disruption=STRICT))
    await world.until(lambda: world.serving_count("web") == 2 and world.serving_count("calm") == 6)
    await world.run(5)
    await world.add_nodes("n1", cpu=8)
    await world.add_nodes("n2", cpu=8, labels={"disk": "ssd"})
    await world.run(5)
    await order(world, prefer=True)
    await world.until(lambda: found(world).status.phase == "Done", seconds=600)
    assert by_node(world) == {"n2": 2}
    assert {each.node for each in world.instances("calm")} == {"n0"}
    assert {each.because for each in found(world).status.moves} == {"NodeAffinity +200"}, "no other score counts"
    await world.delete(found(world))
    await order(world, prefer=True)
    await world.until(lambda: found(world).status.phase == "Done", seconds=600)
    assert found(world).status.message == "no move gains enough points"


async def test_what_has_not_moved_stays_when_the_order_is_deleted(world: World) -> None:
    await crowd(world)
    for node in ("n1", "n2", "n3"):
        world.nodes[node].idle = True  # the other one never serves there
    await order(world, min_gain=5)
    await world.until(lambda: any(each.spec.move for each in world.instances("web")))
    await world.delete(found(world))
    await world.run(30)
    for node in ("n1", "n2", "n3"):
        world.nodes[node].idle = False
    await world.until(lambda: len(world.instances("web")) == 8)
    await world.run(120, step=1)
    assert by_node(world) == {"n0": 8}
    assert not any(each.spec.move for each in world.instances("web"))


async def test_batches_volumes_and_groups_that_stay_are_left_alone(world: World) -> None:
    await crowd(world, restore=False)
    await order(world, min_gain=1)
    await world.until(lambda: found(world).status.phase == "Done")
    assert found(world).status.message == "no move gains enough points"
    assert by_node(world) == {"n0": 8}


async def test_a_move_that_cannot_be_made_is_called_off_and_the_order_ends(world: World) -> None:
    await crowd(world)
    for node in ("n1", "n2", "n3"):
        world.nodes[node].ready = False
    await order(world, moves=1, min_gain=5)
    await world.until(lambda: found(world).status.phase == "Done", seconds=1200)
    (move,) = found(world).status.moves
    assert move.state == "CalledOff"
    await world.until(lambda: by_node(world) == {"n0": 8})
    assert world.events("Rebalanced")


async def test_a_repeated_rebalance_does_not_move_an_instance_again_during_its_rest(world: World) -> None:
    await crowd(world)
    await order(world, "steady", moves=2, min_gain=5, every=Seconds(120), rest=Seconds(86_400))
    await world.until(lambda: found(world, "steady").status.moved >= 3, seconds=900)
    await world.run(1200, step=5)
    counts = by_node(world)
    assert counts["n0"] < 6
    assert found(world, "steady").status.phase == "Resting"
    once = Counter(each.spec.instead_of for each in world.instances("web") if each.spec.instead_of)
    assert all(count == 1 for count in once.values())


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_meanwhile_it_ends_and_the_budget_holds_for_what_it_does(seed: int) -> None:
    luck = random.Random(seed)
    async with World(seed=str(seed)) as world, Background() as tasks:
        world.checks = [world.check_capacity]
        start_rebalance(world, tasks)
        await crowd(world)
        await order(world, moves=6, min_gain=5, at_once=2)
        for _ in range(6):
            await world.run(luck.uniform(1, 15), step=0.5)
            what = luck.choice(["lose", "cordon", "controllers", "scale", "stop", "nothing"])
            node = luck.choice(sorted(world.nodes))
            if what == "lose":
                world.nodes[node].alive = False
            elif what == "cordon":
                await world.change_node(node, cordoned=True)
            elif what == "controllers":
                await world.kill("controllers")
                world.start_controllers()
            elif what == "scale":
                wanted = luck.choice([6, 8, 10])
                again = make_workload("web", replicas=wanted, cpu="500m", memory="64Mi", disruption=STRICT)
                await world.apply(again)
            elif what == "stop":
                name = luck.choice([each.meta.name for each in world.instances("web")])
                await world.stop_instance(name)
        for name, each in world.nodes.items():
            each.alive = True
            await world.change_node(name, cordoned=False)
        await world.until(lambda: found(world).status.phase == "Done", seconds=2400)
        wanted = world.workload("web").spec.groups["main"].count
        await world.until(
            lambda: world.serving_count("web") == wanted and len(world.instances("web")) == wanted, seconds=600
        )
        assert found(world).status.moved <= 6
        assert not any(each.spec.move for each in world.instances("web"))
