"""Restore: who was placed without a rule goes back once, start-first, when the rule can be kept for a while."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mandor.controllers.move_plan import MOVE_SECONDS
from mandor.controllers.restore import AFTER_SECONDS, RestoreController
from mandor.controllers.restore_plan import destination
from mandor.lib.tasks import Background
from mandor.model.instance import Instance, Move
from mandor.store.base import Put
from tests.scenarios.make import make_workload
from tests.scenarios.world import World
from tests.sim.restoring import start_restore

HERE = {"where": [{"rule": "node == n1", "strength": "should"}]}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made, Background() as tasks:
        made.checks = [made.check_capacity]
        start_restore(made, tasks)
        yield made


async def lose_and_return(world: World, name: str) -> None:
    world.nodes[name].alive = False
    await world.until(lambda: world.serving_count("web") == 2 and all(each.node != name for each in world.instances()))
    world.nodes[name].alive = True
    world.nodes[name].running.clear()
    await world.run(5)


@pytest.mark.req("S3-24")
async def test_instances_return_to_a_recovered_node_once_without_unavailability(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("web", replicas=2, placement=HERE))
    await world.until(lambda: world.serving_count("web") == 2)
    assert {each.node for each in world.instances()} == {"n1"}
    await lose_and_return(world, "n1")
    assert {each.node for each in world.instances()} == {"n2"}

    fewest: list[int] = []
    world.checks.append(lambda: fewest.append(world.serving_count("web")))
    await world.until(lambda: {each.node for each in world.instances()} == {"n1"}, seconds=600)
    assert min(fewest) >= 2, "the other one serves before the first stops"
    assert len(world.instances()) == 2
    moved = world.events("Moved")
    assert len(moved) == 2
    assert all(not each.spec.relaxed for each in world.instances())

    versions = [each.meta.uid for each in world.instances()]
    await world.run(600, step=2)
    assert [each.meta.uid for each in world.instances()] == versions, "and that was all"


async def test_a_rule_that_cannot_be_kept_moves_no_instance(world: World) -> None:
    await world.add_nodes("n2", "n3")
    await world.apply(make_workload("web", replicas=2, placement=HERE))
    await world.until(lambda: world.serving_count("web") == 2)
    uids = {each.meta.uid for each in world.instances()}
    await world.run(300, step=2)
    assert {each.meta.uid for each in world.instances()} == uids
    assert not world.events("Moving")


async def test_a_node_that_joins_and_leaves_moves_no_instance(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.change_node("n1", cordoned=True)
    await world.apply(make_workload("web", replicas=1, placement=HERE))
    await world.until(lambda: world.serving_count("web") == 1)
    for _ in range(5):
        await world.change_node("n1", cordoned=False)
        await world.run(AFTER_SECONDS - 15, step=1)
        await world.change_node("n1", cordoned=True)
        await world.run(15, step=1)
    assert not world.events("Moving")


class Counted(RestoreController):
    looks: ClassVar[list[float]] = []

    async def reconcile(self, key: str) -> float | None:
        self.looks.append(self._clock.monotonic())
        return await super().reconcile(key)


async def test_the_controller_sleeps_while_no_instance_could_move() -> None:
    looks = Counted.looks = []
    async with World() as world, Background() as tasks:
        start_restore(world, tasks, Counted)
        await world.add_nodes("n1", "n2")
        await world.change_node("n1", cordoned=True)
        await world.run(300, step=1)
        assert len(looks) == 1, "no instance could move"
        await world.apply(make_workload("web", replicas=1, placement=HERE))
        await world.until(lambda: world.serving_count("web") == 1)
        await world.run(30, step=1)
        assert len(looks) > 1, "an instance was placed without its rule"


async def test_a_destination_is_computed_again_after_a_change_of_the_cluster_but_not_of_a_message(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def counted(instance: Instance, *others: Any) -> str:
        asked.append(instance.meta.name)
        return destination(instance, *others)

    monkeypatch.setattr("mandor.controllers.restore.destination", counted)
    await world.add_nodes("n1", "n2")
    await world.change_node("n1", cordoned=True)
    await world.apply(make_workload("web", replicas=1, placement=HERE))
    await world.apply(make_workload("shop", replicas=1))
    await world.until(lambda: world.serving_count("web") + world.serving_count("shop") == 2)
    await world.run(60, step=1)
    asked.clear()
    [shop] = [each for each in world.instances() if each.spec.workload == "shop"]
    await world.store.commit(Put(shop.changed(status=replace(shop.status, message="all is well"))))
    await world.run(30, step=1)
    assert not asked
    await world.apply(make_workload("shop", replicas=2))
    await world.run(30, step=1)
    assert set(asked) == {"web-0"}


async def test_a_group_may_show_that_it_stays(world: World) -> None:
    await world.add_nodes("n2")
    await world.apply(make_workload("web", replicas=1, placement=HERE, restore=False))
    await world.until(lambda: world.serving_count("web") == 1)
    await world.add_nodes("n1")
    await world.run(300, step=2)
    assert world.instance("web-0").node == "n2"


async def test_without_room_for_both_no_instance_moves(world: World) -> None:
    await world.add_nodes("n2", cpu=2)
    rules = {"apart": [{"workload": "other", "strength": "should"}]}
    await world.apply(make_workload("other", replicas=1, cpu="1"))
    await world.until(lambda: world.serving_count("other") == 1)
    await world.apply(make_workload("web", replicas=1, cpu="1", placement=rules))
    await world.until(lambda: world.serving_count("web") == 1)
    await world.add_nodes("n1", cpu=1)
    await world.change_node("n1", cordoned=True)
    await world.run(120, step=2)
    assert world.instance("web-0").node == "n2"
    await world.change_node("n1", cordoned=False)
    await world.until(lambda: [each.node for each in world.instances("web")] == ["n1"], seconds=300)


async def test_a_move_that_leads_nowhere_is_called_off(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("web", replicas=2))
    await world.until(lambda: world.serving_count("web") == 2)
    first = world.instance("web-0")
    order = Move(to="n9", reason="somebody said so", at=world.clock.now())
    await world.store.commit(Put(first.changed(spec=replace(first.spec, move=order))))
    await world.until(lambda: len(world.instances("web")) == 3)
    await world.run(MOVE_SECONDS + 20, step=5)
    assert [each.meta.uid for each in world.instances("web") if each.meta.uid == first.meta.uid]
    assert len(world.instances("web")) == 2
    assert all(each.spec.move is None for each in world.instances("web"))
    assert world.events("MoveCancelled")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["lose", "return", "cordon", "open", "scale", "wait"]), st.sampled_from(["n1", "n2", "n3"])
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
async def test_whatever_happens_it_comes_to_rest_and_moves_never_cost_a_serving_one(
    steps: list[tuple[str, str]],
) -> None:
    async with World() as world, Background() as tasks:
        world.checks = [world.check_capacity]
        start_restore(world, tasks)
        await world.add_nodes("n1", "n2", "n3")
        spread = {
            "where": [{"rule": "node == n1", "strength": "should"}],
            "apart": [{"workload": "self", "strength": "should"}],
        }
        await world.apply(make_workload("web", replicas=2, placement=spread))
        for step, node in steps:
            if step in {"lose", "return"}:
                world.nodes[node].alive = step == "return"
            elif step in {"cordon", "open"}:
                await world.change_node(node, cordoned=step == "cordon")
            elif step == "scale":
                await world.apply(make_workload("web", replicas=2 + int(node[1]) % 2, placement=spread))
            await world.run(40, step=2)
        for each in world.nodes.values():
            each.alive = True
            await world.change_node(each.name, cordoned=False)
        await world.run(120, step=2)
        wanted = world.workload("web").spec.groups["main"].count
        assert world.serving_count("web") >= wanted
        world.checks.append(lambda: _at_least(world, wanted))
        await world.run(900, step=3)
        uids = {each.meta.uid for each in world.instances()}
        await world.run(300, step=3)
        assert {each.meta.uid for each in world.instances()} == uids, "it has come to rest"
        assert len(uids) == wanted


def _at_least(world: World, wanted: int) -> None:
    assert world.serving_count("web") >= wanted
