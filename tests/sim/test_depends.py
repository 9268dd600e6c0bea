"""Workloads that wait for others, in a whole control plane, on a clock that is turned by hand."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from mandor.controllers import replicas
from mandor.model.codec import from_plain
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.model.rollout import Rollout
from mandor.model.schedule import Schedule
from mandor.model.workload import Workload, WorkloadSpec
from tests.scenarios.make import make_group, make_workload
from tests.scenarios.world import World

QUICK = {"min_healthy": "5s", "deadline": "60s"}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        made.checks = [made.check_capacity, made.check_count]
        await made.add_nodes("n1", "n2", "n3", "n4")
        await made.run(2)
        yield made


def web(version: str = "1", **fields: Any) -> Workload:
    return make_workload(
        "web",
        replicas=fields.pop("replicas", 2),
        env={"V": version},
        update={**QUICK, **fields.pop("update", {})},
        **fields,
    )


def migrate(version: str = "1") -> Workload:
    return make_workload("migrate", type="batch", env={"V": version}, reschedule={"delay": "1s"})


def rollout(world: World) -> Rollout:
    return world.workload("web").status.rollout or Rollout(release="", target="")


def waits(world: World, name: str = "web-0") -> str:
    found = world.find(Instance, name)
    return found.status.message if found is not None and not found.node else ""


def serving(world: World, name: str = "web") -> list[str]:
    return [each.spec.release for each in world.instances(name) if replicas.serving(each)]


def all_ready(world: World, *, ready: bool) -> None:
    for node in world.nodes.values():
        node.ready = ready


def end_of(name: str, phase: Phase) -> Any:
    def behave(instance: Instance) -> InstanceStatus | None:
        return InstanceStatus(phase=phase) if instance.spec.workload == name else None

    return behave


def end_all(world: World, name: str, phase: Phase = Phase.SUCCEEDED) -> None:
    for node in world.nodes.values():
        node.behave = end_of(name, phase)


async def until_ready_again(world: World, name: str) -> None:
    """Return the ready status of a running instance."""
    all_ready(world, ready=True)
    for node in world.nodes.values():
        node.behave = lambda each: (
            replace(each.status, ready=True)
            if each.spec.workload == name and each.phase is Phase.RUNNING and not each.status.ready
            else None
        )
    await world.until(lambda: bool(serving(world, name)))


@pytest.mark.req("S0-24", "S2-16")
async def test_instances_are_there_and_wait_until_the_other_is_healthy(world: World) -> None:
    all_ready(world, ready=False)
    await world.apply(web(depends_on={"db": "healthy"}))
    await world.apply(make_workload("db", replicas=1))
    await world.until(lambda: waits(world) == "waits for db to be healthy")
    await world.run(30)
    assert all(not each.node for each in world.instances("web"))
    status = world.workload("web").status
    assert (status.phase, status.message) == ("Pending", "waits for db to be healthy")
    await until_ready_again(world, "db")
    await world.until(lambda: len(serving(world)) == 2)
    assert not world.workload("web").status.message
    assert world.events("Waits")
    assert world.events("DependenciesMet")


async def test_started_is_less_than_healthy(world: World) -> None:
    all_ready(world, ready=False)
    await world.apply(web(depends_on={"db": "started"}))
    await world.run(5)
    assert "no group or workload of that name yet" in waits(world)
    await world.apply(make_workload("db", replicas=1))
    await world.until(lambda: all(each.node for each in world.instances("web")))
    assert not serving(world, "db")


async def test_a_release_waits_for_the_run_that_belongs_to_it_and_the_old_one_serves_on(world: World) -> None:
    end_all(world, "migrate")
    both: dict[str, Any] = {"depends_on": {"migrate": "completed"}, "update": {"order": "stop-first"}}
    await world.apply(migrate())
    await world.apply(web(**both))
    await world.until(lambda: rollout(world).phase == "Done")
    for node in world.nodes.values():
        node.behave = lambda instance: None
    await world.apply(migrate("2"))
    await world.apply(web("2", **both))
    await world.until(lambda: "waits for migrate" in world.workload("web").status.message)
    await world.run(200)
    assert serving(world) == ["web.1", "web.1"], "nobody makes way for one that may not begin"
    assert rollout(world).phase == "Progressing", "its deadline has not begun"
    end_all(world, "migrate")
    await world.until(lambda: rollout(world).phase == "Done" and serving(world) == ["web.2", "web.2"])


async def test_one_that_failed_is_waited_for_and_that_is_reported(world: World) -> None:
    end_all(world, "migrate", Phase.FAILED)
    await world.apply(make_workload("migrate", type="batch", batch={"retries": 0}))
    await world.apply(web(depends_on={"migrate": "completed"}))
    await world.until(lambda: waits(world) == "waits for migrate to complete (it failed)")
    end_all(world, "migrate")
    await world.apply(make_workload("migrate", type="batch", batch={"retries": 0}, restarted=1))
    await world.until(lambda: len(serving(world)) == 2)


async def test_a_dependency_that_becomes_unhealthy_later_affects_no_dependant(world: World) -> None:
    await world.apply(make_workload("db", replicas=1))
    await world.apply(web(depends_on={"db": "healthy"}))
    await world.until(lambda: len(serving(world)) == 2)
    await world.delete(world.workload("db"))
    await world.until(lambda: not world.instances("db"))
    await world.run(20)
    assert len(serving(world)) == 2
    await world.stop_instance("web-0")
    await world.until(lambda: world.find(Instance, "web-0") is not None and len(serving(world)) == 2)
    await world.apply(web(depends_on={"db": "healthy"}, replicas=4))
    await world.until(lambda: len(serving(world)) == 4)


async def test_the_deadline_of_a_roll_out_begins_when_the_waiting_ends(world: World) -> None:
    await world.apply(web(depends_on={"db": "healthy"}))
    await world.run(300)
    assert rollout(world).phase == "Progressing"
    assert rollout(world).fails_at == 0.0
    await world.apply(make_workload("db", replicas=1))
    await world.until(lambda: rollout(world).phase == "Done")


def shop(version: str = "1") -> Workload:
    """Two groups: `web` begins when `db` is healthy."""
    groups = {
        "db": make_group(env={"V": version}, replicas=1, update=QUICK),
        "web": make_group(env={"V": version}, replicas=2, update=QUICK, depends_on={"db": "healthy"}),
    }
    return Workload(meta=Meta(name="shop", namespace="default"), spec=WorkloadSpec(groups=groups))


async def test_groups_of_a_workload_begin_and_are_rolled_out_in_order(world: World) -> None:
    def of(group: str) -> list[str]:
        found = [each for each in world.instances("shop") if each.spec.group == group]
        return [each.spec.release for each in found if replicas.serving(each)]

    order: list[tuple[bool, bool]] = []
    world.checks.append(lambda: order.append(("shop.2" in of("db"), "shop.2" in of("web"))))
    await world.apply(shop())
    await world.until(lambda: waits(world, "shop-web-0") == "waits for db to be healthy")
    await world.until(lambda: len(of("web")) == 2)
    await world.apply(shop("2"))
    await world.until(lambda: of("web") == ["shop.2", "shop.2"] and of("db") == ["shop.2"])
    assert (True, False) in order
    assert (False, True) not in order


async def test_a_daemon_and_a_batch_wait_as_well_and_a_new_node_does_not_wait_again(world: World) -> None:
    await world.apply(make_workload("exp", type="daemon", depends_on={"db": "healthy"}))
    await world.apply(make_workload("job", type="batch", depends_on={"exp": "healthy"}))
    await world.until(lambda: bool(waits(world, "exp-n1")) and bool(waits(world, "job-0")))
    await world.apply(make_workload("db", replicas=1))
    await world.until(lambda: len(serving(world, "exp")) == 4 and bool(world.instance("job-0").node))
    await world.delete(world.workload("db"))
    await world.add_nodes("n5")
    await world.until(lambda: len(serving(world, "exp")) == 5)


async def test_each_run_of_a_schedule_waits_by_itself(world: World) -> None:
    spec = make_workload("nightly", type="batch", depends_on={"db": "healthy"}).spec
    await world.apply(
        Workload(
            meta=Meta(name="nightly", namespace="default"),
            spec=replace(spec, schedule=from_plain({"cron": ["* * * * *"]}, Schedule)),
        )
    )
    await world.until(lambda: any("waits for db" in each.status.message for each in world.instances()))
    await world.apply(make_workload("db", replicas=1))
    await world.until(lambda: any(each.node for each in world.instances() if each.spec.workload != "db"))


@pytest.mark.parametrize("seed", range(4))
async def test_dependants_start_neither_early_nor_never_under_crashes(world: World, seed: int) -> None:
    luck = random.Random(seed)
    met: set[str] = set()

    def in_order() -> None:
        for name, other in (("c", "b"), ("b", "a")):
            if serving(world, other):
                met.add(name)
            if any(each.node for each in world.instances(name)):
                assert name in met, f"{name} began before {other} was healthy"

    world.checks.append(in_order)
    wanted = [
        make_workload("c", replicas=2, depends_on={"b": "healthy"}),
        make_workload("b", replicas=1, depends_on={"a": "healthy"}),
        make_workload("a", replicas=1),
    ]
    luck.shuffle(wanted)
    for each in wanted:
        await world.apply(each)
        await world.run(luck.choice([0.5, 2, 10]))
        victim = luck.choice(["controllers", "scheduler", "node"])
        if victim == "node":
            name = luck.choice(sorted(world.nodes))
            world.nodes[name].alive = not world.nodes[name].alive
        else:
            await world.kill(victim)
            (world.start_controllers if victim == "controllers" else world.start_scheduler)()
        await world.run(luck.choice([0.5, 5]))
    for node in world.nodes.values():
        node.alive = True
    await world.until(lambda: [len(serving(world, name)) for name in "abc"] == [1, 1, 2])
