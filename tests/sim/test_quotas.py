"""Quotas: who exceeds one waits, a change counts at once, and what is used is shown."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from mandor.model.meta import Key, Meta
from mandor.model.quota import Quota, QuotaAmounts, QuotaSpec
from mandor.store.base import Delete, Put
from tests.scenarios.make import make_class, make_workload
from tests.scenarios.world import World

KEY = Key(Quota.kind, "default", "all")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        made.checks = [made.check_capacity, made.check_count]
        await made.add_nodes("n1", "n2", cpu=8)
        yield made


async def quota(world: World) -> Quota:
    found = await world.store.get(KEY)
    assert isinstance(found, Quota)
    return found


async def limit(world: World, **spec: object) -> None:
    found = await world.store.get(KEY)
    made = QuotaSpec(**spec)  # type: ignore[arg-type]
    fresh = Quota(meta=Meta(name="all", namespace="default"), spec=made)
    await world.store.commit(Put(found.changed(spec=made) if isinstance(found, Quota) else fresh))


@pytest.mark.req("S2-14")
async def test_an_instance_above_the_quota_waits_until_there_is_room_in_it(world: World) -> None:
    await limit(world, cpu=3000, instances=10)
    await world.apply(make_workload("web", replicas=5, cpu="1"))
    await world.until(lambda: world.serving_count("web") == 3)
    await world.run(5)
    waits = next(each for each in world.instances() if not each.spec.node)
    assert (
        waits.status.message == "0/2 nodes fit: 2 Quota (the quota all of the namespace default is exceeded by 1 cpu)"
    )
    assert (await quota(world)).status.used == QuotaAmounts(cpu=3000, instances=3)  # type: ignore[arg-type]

    await limit(world, cpu=4000)
    await world.until(lambda: world.serving_count("web") == 4, seconds=15)
    assert len([each for each in world.instances() if each.spec.node]) == 4

    await world.apply(make_workload("little", replicas=1))
    await world.until(lambda: world.serving_count("little") == 1, seconds=15)  # what asks for nothing exceeds nothing

    found = await quota(world)
    await world.store.commit(Delete(found.key, found.meta.version))
    await world.until(lambda: world.serving_count("web") == 5, seconds=15)


async def test_use_that_falls_lets_the_next_one_in(world: World) -> None:
    await limit(world, instances=2)
    await world.apply(make_workload("a", replicas=2))
    await world.until(lambda: world.serving_count("a") == 2)
    await world.apply(make_workload("b", replicas=1))
    await world.run(5)
    assert world.serving_count("b") == 0
    await world.apply(make_workload("a", replicas=1))
    await world.until(lambda: world.serving_count("b") == 1, seconds=30)
    await world.run(5)
    assert (await quota(world)).status.used.instances == 2


async def test_a_later_quota_counts_existing_instances(world: World) -> None:
    await world.apply(make_workload("web", replicas=2, cpu="1"))
    await world.until(lambda: world.serving_count("web") == 2)
    await limit(world, cpu=5000, instances=10)
    await world.run(5)
    found = await quota(world)
    assert found.status.used == QuotaAmounts(cpu=2000, instances=2)  # type: ignore[arg-type]

    await world.store.commit(Delete(found.key, found.meta.version))
    await world.apply(make_workload("web", replicas=1, cpu="1"))
    await world.until(lambda: len(world.instances()) == 1)
    await limit(world, cpu=5000, instances=10)
    await world.run(5)
    assert (await quota(world)).status.used == QuotaAmounts(cpu=1000, instances=1)  # type: ignore[arg-type]


async def test_a_quota_of_a_priority_class_applies_to_workloads_of_that_class(world: World) -> None:
    await world.store.commit(Put(make_class("low", -5)))
    await limit(world, instances=1, priority_class="low")
    await world.apply(make_workload("free", replicas=2))
    await world.apply(make_workload("bound", replicas=2, priority="low"))
    await world.until(lambda: world.serving_count("free") == 2 and world.serving_count("bound") == 1)
    await world.run(10)
    assert world.serving_count("bound") == 1
    assert (await quota(world)).status.used.instances == 1

    workload = world.workload("bound")
    await world.store.commit(Put(workload.changed(spec=replace(workload.spec, priority=-5))))
    await world.until(lambda: world.serving_count("bound") == 2, seconds=30)
