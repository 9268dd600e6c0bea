"""NoExecute: instances without a toleration leave at once; with a limited toleration, after that time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from mandor.model.node import Effect, Taint
from mandor.model.phase import Phase
from tests.scenarios.make import make_workload
from tests.scenarios.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        made.checks = [made.check_capacity]
        yield made


async def serve(world: World, name: str, *tolerate: dict[str, Any], **fields: Any) -> None:
    await world.apply(make_workload(name, replicas=2, cpu="1", placement={"tolerate": list(tolerate)}, **fields))
    await world.until(lambda: world.serving_count(name) == 2)


async def taint(world: World, name: str, effect: Effect = "NoExecute") -> None:
    await world.change_node(name, taints=(Taint("broken", "disk", effect, since=world.clock.now()),))


def places(world: World, name: str) -> set[str]:
    return {each.node for each in world.instances(name)}


async def test_intolerant_instances_are_evicted_regardless_of_budgets(world: World) -> None:
    await world.add_nodes("n1")
    await serve(world, "web", disruption={"max_unavailable": 0})
    await serve(world, "stays", {"key": "broken"})
    await world.add_nodes("n2")
    await taint(world, "n1")
    await world.until(lambda: places(world, "web") == {"n2"} and world.serving_count("web") == 2)
    assert places(world, "stays") == {"n1"}
    assert len(world.events("Evicted")) == 2
    assert "n1 has the taint broken=disk:NoExecute" in world.events("Evicted")[0].spec.message


async def test_other_taint_effects_evict_no_instance(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await serve(world, "web")
    uids = {each.meta.uid for each in world.instances()}
    await taint(world, "n1", "NoSchedule")
    await taint(world, "n2", "PreferNoSchedule")
    await world.run(30)
    assert {each.meta.uid for each in world.instances()} == uids


async def test_an_instance_with_limited_toleration_is_evicted_afterwards(world: World) -> None:
    await world.add_nodes("n1")
    await serve(world, "web", {"key": "broken", "effect": "NoExecute", "seconds": "5m"})
    await world.add_nodes("n2")
    await taint(world, "n1")
    await world.change_node("n1", cordoned=True)  # as in Kubernetes, a taint it tolerates would let it back in
    await world.run(295, step=1)
    assert places(world, "web") == {"n1"}
    await world.run(15)
    assert places(world, "web") == {"n2"}
    await world.until(lambda: world.serving_count("web") == 2)


async def test_a_taint_removed_in_time_evicts_no_instance(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await serve(world, "web", {"seconds": "1m"})
    uids = {each.meta.uid for each in world.instances()}
    await taint(world, "n1")
    await world.run(50)
    await world.change_node("n1", taints=())
    await world.run(60)
    assert {each.meta.uid for each in world.instances()} == uids


async def test_a_new_leader_counts_from_when_the_taint_came(world: World) -> None:
    await world.add_nodes("n1")
    await serve(world, "web", {"key": "broken", "seconds": "1m"})
    await taint(world, "n1")
    await world.run(40)
    await world.kill("controllers")
    await world.kill("their recorder")
    world.start_controllers()
    await world.run(15)
    assert not world.events("Evicted")
    await world.run(15)
    assert len(world.events("Evicted")) == 2


async def test_a_batch_begins_anew_without_losing_a_retry(world: World) -> None:
    await world.add_nodes("n1")
    await world.apply(make_workload("job", type="batch", batch={"completions": 1}, restart={"policy": "never"}))
    await world.until(lambda: world.serving_count("job") == 1)
    await world.add_nodes("n2")
    await taint(world, "n1")
    await world.until(lambda: places(world, "job") == {"n2"} and world.instance("job-0").phase is Phase.RUNNING)
    assert world.instance("job-0").spec.attempt == 0
