"""A batch on every node in a whole control plane, on a clock that is turned by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from mandor.model.instance import Instance, InstanceStatus
from mandor.model.node import Drain, Node, NodePhase
from mandor.model.phase import Phase
from mandor.model.workload import Workload
from tests.scenarios.make import make_workload
from tests.scenarios.world import World
from tests.sim.test_daemon import change


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        made.checks = [made.check_capacity]
        await made.add_nodes("n1", "n2", "n3")
        for name in made.nodes:
            succeed(made, name)
        yield made


def succeed(world: World, name: str, seconds: float = 3, failures: int = 0) -> None:
    """Instances on the node end after `seconds`, the first ones with an error."""

    def behave(each: Instance) -> InstanceStatus | None:
        now = world.clock.now()
        if now - each.status.since < seconds:
            return None
        if each.spec.attempt < failures:
            return InstanceStatus(phase=Phase.FAILED, reason="Error", exit_code=1, since=now)
        return InstanceStatus(phase=Phase.SUCCEEDED, reason="Completed", exit_code=0, since=now)

    world.nodes[name].behave = behave


def sweep(version: str = "1", **batch: Any) -> Workload:
    made = {"per_node": True, **batch}
    return make_workload(
        "sweep", type="batch", batch=made, env={"V": version}, reschedule={"delay": "2s", "max_delay": "4s"}
    )


def node(world: World, name: str) -> Node:
    found = world.find(Node, name, "")
    assert found is not None
    return found


def counts(world: World) -> tuple[str, int, int]:
    status = world.workload("sweep").status
    return status.phase, status.succeeded, status.wanted


@pytest.mark.req("S2-16")
async def test_each_node_runs_it_once_also_one_that_joins_and_a_new_release_runs_on_all_again(world: World) -> None:
    await world.apply(sweep())
    await world.until(lambda: counts(world) == ("Succeeded", 3, 3))
    assert {each.meta.name: each.node for each in world.instances()} == {f"sweep-n{n}": f"n{n}" for n in (1, 2, 3)}
    uids = {each.meta.uid for each in world.instances()}

    await world.add_nodes("n4")
    succeed(world, "n4")
    await world.until(lambda: counts(world) == ("Succeeded", 4, 4))
    assert uids < {each.meta.uid for each in world.instances()}, "the others did not run again"
    await world.run(60)
    uids = {each.meta.uid for each in world.instances()}
    assert len(uids) == 4

    await world.apply(sweep("2"))
    await world.until(
        lambda: counts(world) == ("Succeeded", 4, 4) and world.workload("sweep").status.release[-1] == "2"
    )
    assert not uids & {each.meta.uid for each in world.instances()}


async def test_a_failed_one_is_retried_on_its_node(world: World) -> None:
    succeed(world, "n2", failures=2)
    await world.apply(sweep(retries=2))
    await world.until(lambda: counts(world) == ("Succeeded", 3, 3), seconds=60)
    assert {each.node: each.spec.attempt for each in world.instances()} == {"n1": 0, "n2": 2, "n3": 0}


async def test_a_node_that_fails_too_often_fails_the_batch_but_stops_no_other_node(world: World) -> None:
    succeed(world, "n2", failures=9)
    succeed(world, "n3", seconds=40)
    await world.apply(sweep(retries=1))
    await world.until(lambda: counts(world)[0] == "Failed", seconds=90)
    assert counts(world) == ("Failed", 2, 3)
    assert "failed on 1 of 3 nodes: n2" in world.workload("sweep").status.message


async def test_a_drain_waits_for_it_and_a_node_that_was_down_runs_it_later(world: World) -> None:
    succeed(world, "n1", seconds=20)
    world.nodes["n3"].alive = False
    await world.until(lambda: node(world, "n3").status.phase is NodePhase.DOWN, seconds=120)
    await world.apply(sweep())
    await world.until(lambda: any(each.node == "n1" and each.phase is Phase.RUNNING for each in world.instances()))
    await change(world, "n1", spec=lambda each: replace(each.spec, drain=Drain()))
    await world.run(5)
    drain = node(world, "n1").status.drain
    assert drain is not None
    assert drain.waiting == ("1 of default/sweep: batch runs to completion",)
    await world.until(lambda: counts(world) == ("Succeeded", 2, 2), seconds=60)
    world.nodes["n3"].alive = True
    await world.until(lambda: counts(world) == ("Succeeded", 3, 3), seconds=120)
