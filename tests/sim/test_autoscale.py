"""Counts that follow their load, with the whole control plane on a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.model.autoscale import AutoscaleStatus, Metric
from mandor.model.codec import from_plain
from mandor.model.instance import Instance
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.model.quota import Quota, QuotaSpec
from mandor.model.usage import InstanceUsage
from tests.scenarios.make import make_workload
from tests.scenarios.world import World

FAST: dict[str, Any] = {"min": 1, "max": 8, "cpu": "50%", "down": {"window": "1m"}}


def count(world: World) -> int:
    return world.workload("web").spec.groups["main"].count


def told(world: World) -> AutoscaleStatus:
    return world.workload("web").status.autoscale["main"]


class Load:
    """Return the usage of each ready instance when they share this many cores of work."""

    def __init__(self, world: World, cores: float) -> None:
        self.world, self.cores = world, cores
        world.usage = self.used

    def used(self, instance: Instance) -> InstanceUsage:
        serving = max(1, self.world.serving_count(instance.spec.workload))
        ready = instance.phase is Phase.RUNNING and instance.status.ready
        return InstanceUsage(cpu_milli=round(1000 * self.cores / serving), warming=not ready)


async def serve(world: World, **fields: Any) -> None:
    await world.apply(make_workload("web", cpu="1", **fields))
    await world.until(lambda: world.serving_count("web") == count(world))


@pytest.mark.req("S2-47", "S0-20")
async def test_a_service_grows_with_its_load_and_shrinks_after_it(world: World) -> None:
    await world.add_nodes("n1", "n2", "n3")
    load = Load(world, 0.5)
    await serve(world, autoscale=FAST)
    await world.run(60)
    assert count(world) == 1
    assert told(world).reason == "Steady"
    load.cores = 3.0
    await world.until(lambda: world.serving_count("web") == 6)
    await world.run(60)
    assert count(world) == 6
    assert [each.current for each in told(world).readings] == [50.0]
    assert world.events("Autoscaled")
    assert "target 50%" in world.events("Autoscaled")[0].spec.message
    load.cores = 0.5
    await world.run(50)
    assert count(world) == 6, "it shrinks only after its window"
    assert told(world).reason == "Settling"
    await world.until(lambda: count(world) == 1)
    await world.until(lambda: len(world.instances("web")) == 1)


@pytest.mark.req("S2-47")
async def test_no_instance_is_removed_without_measurements(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await serve(world, replicas=4, autoscale=FAST)
    await world.run(120)
    assert count(world) == 4
    assert told(world).reason == "NoMetrics"
    (event,) = world.events("AutoscaleBlind")
    assert "was measured" in event.spec.message


async def test_a_server_that_died_is_not_believed(world: World) -> None:
    await world.add_nodes("n1", "n2")
    Load(world, 0.5)
    await serve(world, replicas=1, autoscale=FAST)
    await world.run(30)
    assert told(world).reason == "Steady"
    world.serving = False
    await world.run(30)
    assert told(world).reason == "NoMetrics"


async def test_what_waits_for_a_place_does_not_make_it_grow_further(world: World) -> None:
    """Four fit on the only node; more load than four can bear asks for more once, not again and again."""
    await world.add_nodes("n1", cpu=4)
    Load(world, 4.0)
    await serve(world, autoscale=FAST | {"max": 100})
    await world.run(120)
    assert world.serving_count("web") == 4
    assert count(world) <= 8


async def test_a_metric_without_an_answer_is_reported_and_changes_nothing(world: World) -> None:
    await world.add_nodes("n1", "n2")
    scaling = {"min": 1, "max": 6, "metric": {"url": "http://prometheus:9090", "query": "q", "target": 10}}
    await serve(world, replicas=2, autoscale=scaling)
    await world.run(90)
    assert count(world) == 2
    assert "does not answer" in told(world).message
    assert world.events("AutoscaleBlind")

    def answer(metric: Metric) -> float:
        assert metric.query == "q"
        return 45.0

    world.metric = answer
    await world.until(lambda: world.serving_count("web") == 5)
    await world.run(30)
    assert [each.current for each in told(world).readings] == [9.0]


async def test_a_roll_out_and_a_growing_count_go_together(world: World) -> None:
    await world.add_nodes("n1", "n2", "n3", "n4")
    load = Load(world, 1.0)
    await serve(world, replicas=2, autoscale=FAST)
    await world.run(30)
    least: list[int] = []
    load.cores = 2.0
    await world.apply(make_workload("web", cpu="1", env={"A": "2"}, replicas=2, autoscale=FAST))
    world.checks.append(lambda: least.append(world.serving_count("web")))
    await world.run(180)
    assert count(world) == 4
    assert min(least) >= 2
    found = world.instances("web")
    assert len(found) == 4
    assert {each.spec.release for each in found} == {"web.2"}


async def test_a_workload_that_no_longer_autoscales_keeps_its_count_and_loses_the_history(world: World) -> None:
    await world.add_nodes("n1", "n2")
    Load(world, 2.0)
    await serve(world, autoscale=FAST)
    await world.until(lambda: count(world) == 4)
    now = world.workload("web")
    plain = make_workload("web", cpu="1", replicas=count(world))
    await world.apply(plain)
    await world.run(30)
    assert count(world) == 4
    assert not world.workload("web").status.autoscale
    assert now.status.autoscale


async def test_a_controller_that_was_restarted_takes_nothing_away_too_early(world: World) -> None:
    await world.add_nodes("n1", "n2")
    load = Load(world, 2.0)
    await serve(world, replicas=4, autoscale=FAST)
    await world.run(30)
    load.cores = 0.2
    await world.run(50)
    await world.kill("controllers")
    await world.kill("their recorder")
    world.start_controllers()
    await world.run(50)
    assert count(world) == 4
    await world.until(lambda: count(world) == 1)


async def test_a_quota_stops_what_the_load_asks_for_and_the_rest_serves(world: World) -> None:
    await world.add_nodes("n1", "n2")
    spec = from_plain({"instances": 3}, QuotaSpec)
    await world.add(Quota(meta=Meta(name="small", namespace="default"), spec=spec))
    Load(world, 3.0)
    await serve(world, autoscale=FAST)
    await world.run(120)
    assert world.serving_count("web") == 3
    assert count(world) <= 8
