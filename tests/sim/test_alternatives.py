"""Alternatives: the scheduler chooses form and node, and all components count the chosen form."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from mandor.lib.quantity import Cpu
from mandor.lib.tasks import Background
from mandor.model.decision import DecisionRecord
from mandor.model.instance import InstanceStatus
from mandor.model.meta import Meta
from mandor.model.node import Node, NodePhase
from mandor.model.phase import Phase
from mandor.model.quota import Quota, QuotaSpec
from mandor.model.workload import Workload
from mandor.store.base import Put
from tests.scenarios.make import DOCKER, PROCESS, make_workload
from tests.scenarios.world import World
from tests.sim.restoring import start_restore

AS_PROCESS = {"engine": ["process"], "command": ["run"]}


def web(name: str = "web", **fields: Any) -> Workload:
    """A container; else a process."""
    return make_workload(name, **{"image": "web:1", "engine": ["docker"], "alternatives": [AS_PROCESS], **fields})


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        made.checks = [made.check_capacity]
        yield made


def forms(world: World) -> list[tuple[str, int]]:
    return [(each.node, each.spec.variant) for each in world.instances("web")]


async def served(world: World, count: int = 1) -> None:
    await world.until(lambda: world.serving_count("web") == count and len(world.instances("web")) == count)


@pytest.mark.req("S0-2", "S0-35")
async def test_where_nothing_runs_the_main_form_the_next_one_is_placed_with_a_reason(world: World) -> None:
    await world.add_nodes("n1", "n2", engines=PROCESS)
    await world.run(2)
    await world.apply(web())
    await served(world)
    assert forms(world)[0][1] == 1
    await world.run(2)
    kept = world.find(DecisionRecord, "web-0")
    assert kept is not None
    assert kept.spec.form == "alternative 1 (process)"
    assert kept.spec.message.startswith("the main form: 0/2 nodes fit: 2 EngineFit")
    (told,) = world.events("Scheduled")
    assert "as alternative 1 (process)" in told.spec.message


async def test_the_main_form_comes_first_wherever_it_has_a_place(world: World) -> None:
    await world.add_nodes("p1", "p2", engines=PROCESS, cpu=64)
    await world.add_nodes("d1", engines=DOCKER, cpu=1)
    await world.run(2)
    await world.apply(web(replicas=3, cpu="500m"))
    await served(world, 3)
    assert sorted(variant for _, variant in forms(world)) == [0, 0, 1]
    assert {node for node, variant in forms(world) if not variant} == {"d1"}


async def test_a_form_is_counted_as_what_it_asks_for_also_by_the_next_scheduler(world: World) -> None:
    await world.add_nodes("n1", engines=PROCESS, cpu=2)
    await world.run(2)
    smaller = {**AS_PROCESS, "resources": {"cpu": "500m"}}
    await world.apply(web(replicas=5, cpu="2", alternatives=[smaller]))
    await world.until(lambda: world.serving_count("web") == 4)
    assert world.scheduler is not None
    assert not (await world.scheduler.compare_table()).differences
    await world.kill("scheduler")
    await world.kill("its recorder")
    world.start_scheduler()
    await world.run(10)
    assert world.serving_count("web") == 4, "the node is full"
    assert not (await world.scheduler.compare_table()).differences
    left = next(each for each in world.instances("web") if not each.node)
    assert "the main form: 0/1 nodes fit: 1 EngineFit" in left.status.message
    assert "alternative 1 (process): 0/1 nodes fit: 1 NodeResourcesFit (short of 500m cpu)" in left.status.message

    await world.stop_instance("web-0")
    await world.until(lambda: any(each.spec.index == left.spec.index and each.node for each in world.instances("web")))


async def test_a_quota_counts_the_form_that_was_chosen(world: World) -> None:
    await world.add_nodes("n1", engines=PROCESS)
    await world.add(Quota(meta=Meta(name="all", namespace="default"), spec=QuotaSpec(cpu=Cpu(1000))))
    await world.run(2)
    smaller = {**AS_PROCESS, "resources": {"cpu": "500m"}}
    await world.apply(web(replicas=3, cpu="2", alternatives=[smaller]))
    await world.until(lambda: world.serving_count("web") == 2)
    await world.run(5)
    assert world.serving_count("web") == 2
    quota = world.find(Quota, "all")
    assert quota is not None
    assert quota.status.used.cpu == 1000


async def test_another_form_is_tried_before_a_rule_is_given_up(world: World) -> None:
    await world.add_nodes("d1", engines=DOCKER, labels={"zone": "a"})
    await world.add_nodes("p1", engines=PROCESS, labels={"zone": "b"})
    await world.run(2)
    rule = {"where": [{"rule": "zone == b", "strength": "should"}]}
    await world.apply(web(placement=rule))
    await served(world)
    assert forms(world) == [("p1", 1)]
    assert not world.instance("web-0").spec.relaxed


async def test_no_instance_is_preempted_while_another_form_fits(world: World) -> None:
    await world.add_nodes("d1", engines=DOCKER, cpu=1)
    await world.add_nodes("p1", engines=PROCESS, cpu=1)
    await world.run(2)
    await world.apply(make_workload("low", image="low:1", cpu="1"))
    await world.until(lambda: world.serving_count("low") == 1)
    await world.apply(web(priority=100, cpu="1", replicas=1))
    await served(world)
    assert forms(world) == [("p1", 1)]
    assert not world.events("Preempted")

    await world.apply(web("next", priority=100, cpu="1"))
    await world.until(lambda: bool(world.events("Preempted")))
    await world.until(lambda: world.serving_count("next") == 1)
    assert world.instance("next-0").node == "d1", "with no place in any form, somebody makes room: for the main form"


async def test_room_may_be_made_for_an_alternative(world: World) -> None:
    await world.add_nodes("p1", engines=PROCESS, cpu=1)
    await world.run(2)
    await world.apply(make_workload("low", cpu="1"))
    await world.until(lambda: world.serving_count("low") == 1)
    await world.apply(web(priority=100, cpu="1"))
    await world.until(lambda: bool(world.events("Preempted")))
    await served(world)
    assert forms(world) == [("p1", 1)]


async def test_it_waits_for_room_that_will_soon_be_free_rather_than_take_another_form(world: World) -> None:
    await world.add_nodes("d1", engines=DOCKER, cpu=1)
    await world.add_nodes("p1", engines=PROCESS, cpu=1)
    await world.run(2)
    await world.apply(make_workload("old", image="old:1", cpu="1"))
    await world.until(lambda: world.serving_count("old") == 1)
    world.nodes["d1"].slow_stop = 8
    await world.apply(make_workload("old", image="old:1", cpu="1", replicas=0))
    await world.run(2)
    await world.apply(web(cpu="1"))
    await world.run(3)
    assert "rather than run as alternative 1 (process)" in world.instance("web-0").status.message
    await served(world)
    assert forms(world) == [("d1", 0)]


async def test_one_that_failed_in_its_main_form_is_tried_in_another_elsewhere(world: World) -> None:
    await world.add_nodes("d1", engines=DOCKER)
    await world.add_nodes("p1", engines=PROCESS)
    world.nodes["d1"].behave = lambda instance: InstanceStatus(
        phase=Phase.FAILED, reason="StartFailed", since=world.clock.now()
    )
    await world.run(2)
    await world.apply(web())
    await world.until(lambda: forms(world) == [("p1", 1)])


@pytest.mark.req("S0-20")
async def test_it_goes_back_to_its_main_form_start_first_when_that_has_a_place_again(world: World) -> None:
    async with Background() as tasks:
        start_restore(world, tasks)
        await world.add_nodes("p1", engines=PROCESS)
        await world.run(2)
        await world.apply(web(replicas=2))
        await served(world, 2)
        assert {variant for _, variant in forms(world)} == {1}
        fewest: list[int] = []
        world.checks.append(lambda: fewest.append(world.serving_count("web")))
        await world.add_nodes("d1", engines=DOCKER)
        await world.until(lambda: forms(world) == [("d1", 0), ("d1", 0)], seconds=600)
        assert min(fewest) >= 2
        uids = [each.meta.uid for each in world.instances("web")]
        await world.run(300, step=2)
        assert [each.meta.uid for each in world.instances("web")] == uids, "and that was all"


async def test_it_goes_back_also_on_its_own_node(world: World) -> None:
    async with Background() as tasks:
        start_restore(world, tasks)
        await world.add_nodes("n1", engines=PROCESS)
        await world.run(2)
        await world.apply(web())
        await served(world)
        node = world.find(Node, "n1", "")
        assert node is not None
        await world.store.commit(Put(node.changed(status=replace(node.status, engines={**PROCESS, **DOCKER}))))
        await world.until(lambda: forms(world) == [("n1", 0)], seconds=600)


async def test_restore_false_keeps_the_alternative(world: World) -> None:
    async with Background() as tasks:
        start_restore(world, tasks)
        await world.add_nodes("p1", engines=PROCESS)
        await world.run(2)
        await world.apply(web(restore=False))
        await served(world)
        await world.add_nodes("d1", engines=DOCKER)
        await world.run(300, step=2)
        assert forms(world) == [("p1", 1)]


async def test_what_is_replaced_is_placed_afresh(world: World) -> None:
    await world.add_nodes("p1", engines=PROCESS)
    await world.run(2)
    await world.apply(web())
    await served(world)
    await world.add_nodes("d1", engines=DOCKER)
    await world.until(lambda: world.node_phase("d1") is NodePhase.READY)
    await world.stop_instance("web-0")
    await world.until(lambda: forms(world) == [("d1", 0)])


async def test_a_batch_has_alternatives_too(world: World) -> None:
    await world.add_nodes("p1", engines=PROCESS)
    await world.run(2)
    await world.apply(web(type="batch"))
    await world.until(lambda: forms(world) == [("p1", 1)])
