"""Drain: instances move to other nodes, start-first and within their budgets, and the progress is reported."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mandor.lib.quantity import Seconds
from mandor.model.instance import InstanceStatus
from mandor.model.node import Drain, DrainStatus, Node
from mandor.model.phase import Phase
from mandor.store.base import Put
from tests.scenarios.make import make_workload
from tests.scenarios.world import World

BATCH: dict[str, Any] = {"type": "batch", "batch": {"completions": 1}, "restart": {"policy": "never"}}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        made.checks = [made.check_capacity]
        yield made


async def drain(world: World, *names: str, **fields: Any) -> None:
    for name in names:
        await world.change_node(name, drain=Drain(**fields))


def told(world: World, name: str) -> DrainStatus:
    node = world.find(Node, name, "")
    assert node is not None
    assert node.status.drain is not None
    return node.status.drain


def empty(world: World, *names: str) -> bool:
    return all(told(world, name).phase == "Drained" for name in names)


def on(world: World, name: str) -> list[str]:
    return [each.meta.name for each in world.instances() if each.node == name and not each.phase.over]


def watch_least(world: World, workload: str) -> list[int]:
    seen: list[int] = []
    world.checks.append(lambda: seen.append(available(world, workload)))
    return seen


def available(world: World, workload: str) -> int:
    found = world.instances(workload)
    return sum(each.phase is Phase.RUNNING and each.status.ready and each.spec.stop is None for each in found)


async def serve(world: World, name: str, count: int, **fields: Any) -> None:
    await world.apply(make_workload(name, replicas=count, **fields))
    await world.until(lambda: world.serving_count(name) == count)


@pytest.mark.req("S0-20")
async def test_a_drained_node_is_empty_and_every_service_stayed_available(world: World) -> None:
    await world.add_nodes("n1", "n2", "n3")
    await serve(world, "web", 6, cpu="1")
    least = watch_least(world, "web")
    await drain(world, "n1")
    await world.run(1)
    await world.until(lambda: empty(world, "n1"))
    assert not on(world, "n1")
    assert min(least) == 6
    await world.run(10)
    assert len(world.instances("web")) == 6
    assert all(each.spec.move is None for each in world.instances("web"))
    assert told(world, "n1").total == 2
    assert told(world, "n1").left == 0
    assert world.events("Draining")
    assert world.events("Drained")


async def test_a_drained_node_stays_empty_until_the_drain_ends(world: World) -> None:
    await world.add_nodes("n1", "n2", cpu=2)
    await drain(world, "n1")
    await world.apply(make_workload("web", replicas=4, cpu="1"))
    await world.run(20)
    assert not on(world, "n1")
    await world.change_node("n1", drain=None)
    await world.until(lambda: world.serving_count("web") == 4)
    node = world.find(Node, "n1", "")
    assert node is not None
    assert node.status.drain is None
    assert world.events("DrainEnded")


async def test_a_drain_that_is_cancelled_leaves_things_as_they_are(world: World) -> None:
    await world.add_nodes("n1", cpu=2)
    await serve(world, "web", 2, cpu="1")
    uids = {each.meta.uid for each in world.instances("web")}
    await drain(world, "n1")
    await world.run(1)
    await world.until(lambda: told(world, "n1").phase == "Waiting")
    assert "no node for the replacement" in told(world, "n1").waiting[0]
    assert "NodeUnschedulable" in told(world, "n1").waiting[0]
    assert world.events("DrainWaits")
    await world.change_node("n1", drain=None)
    await world.run(10)
    assert {each.meta.uid for each in world.instances("web")} == uids
    assert all(each.spec.move is None for each in world.instances("web"))


async def test_without_room_elsewhere_it_waits_and_goes_on_when_there_is(world: World) -> None:
    await world.add_nodes("n1", "n2", cpu=2)
    await serve(world, "web", 4, cpu="1")
    least = watch_least(world, "web")
    await drain(world, "n1")
    await world.run(60)
    assert told(world, "n1").phase == "Waiting"
    await world.add_nodes("n3", cpu=2)
    await world.until(lambda: empty(world, "n1"))
    assert min(least) == 4


async def test_a_budget_of_none_is_kept_by_starting_first(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await serve(world, "web", 2, cpu="1", disruption={"max_unavailable": 0})
    least = watch_least(world, "web")
    await drain(world, "n1")
    await world.run(1)
    await world.until(lambda: empty(world, "n1"))
    assert min(least) == 2


async def test_an_instance_that_is_not_ready_leaves_at_once(world: World) -> None:
    await world.add_nodes("n1", "n2")
    world.nodes["n1"].ready = False
    world.nodes["n2"].alive = False
    await world.apply(make_workload("web", replicas=2, cpu="1", disruption={"max_unavailable": 0}))
    await world.until(
        lambda: len(on(world, "n1")) == 2 and all(each.phase is Phase.RUNNING for each in world.instances())
    )
    world.nodes["n2"].alive = True
    await world.run(2)
    await drain(world, "n1")
    await world.run(1)
    await world.until(lambda: empty(world, "n1") and world.serving_count("web") == 2)


async def test_a_group_that_lacks_others_waits_for_its_budget(world: World) -> None:
    await world.add_nodes("n1", "n2", "n3", cpu=2)
    await serve(
        world, "web", 3, cpu="1", disruption={"max_unavailable": 0}, placement={"apart": [{"workload": "self"}]}
    )
    await world.add_nodes("n4", cpu=2)
    world.nodes["n3"].behave = lambda each: (
        InstanceStatus(phase=Phase.RUNNING, ready=False, since=0.0) if each.status.ready else None
    )
    await world.until(lambda: world.serving_count("web") == 2)
    await drain(world, "n1")
    await world.run(30)
    assert told(world, "n1").phase == "Waiting"
    assert told(world, "n1").waiting == ("1 of default/web: waiting for its disruption budget (max_unavailable 0)",)
    assert available(world, "web") == 3, "the one that leaves, the one in its place, and the other"
    world.nodes["n3"].behave = lambda each: (
        InstanceStatus(phase=Phase.RUNNING, ready=True, since=0.0) if not each.status.ready else None
    )
    await world.until(lambda: empty(world, "n1"))


async def test_a_failed_replacement_stops_no_instance(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.change_node("n2", cordoned=True)
    await serve(world, "web", 1)
    await world.change_node("n2", cordoned=False)
    world.nodes["n2"].ready = False
    world.nodes["n2"].behave = lambda each: InstanceStatus(
        phase=Phase.FAILED, reason="CrashLoop", since=world.clock.now()
    )
    await drain(world, "n1")
    await world.run(25)
    assert available(world, "web") == 1
    assert "the replacement web-1 ended" in told(world, "n1").waiting[0]
    assert len(world.instances("web")) == 2
    world.nodes["n2"].ready = True
    world.nodes["n2"].behave = lambda each: None
    await world.until(lambda: empty(world, "n1"))
    assert len(world.instances("web")) == 1


async def test_a_batch_runs_to_its_end(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.change_node("n2", cordoned=True)
    await world.apply(make_workload("job", **BATCH))
    await world.until(lambda: world.serving_count("job") == 1)
    await world.change_node("n2", cordoned=False)
    await drain(world, "n1")
    await world.run(120)
    assert told(world, "n1").waiting == ("1 of default/job: batch runs to completion",)
    world.nodes["n1"].behave = lambda each: InstanceStatus(
        phase=Phase.SUCCEEDED, reason="Completed", since=world.clock.now()
    )
    await world.until(lambda: empty(world, "n1"))
    assert world.workload("job").status.phase == "Succeeded"


async def test_at_the_deadline_a_batch_starts_again_elsewhere_and_a_budget_is_respected(world: World) -> None:
    await world.add_nodes("n1", cpu=2)
    await world.apply(make_workload("job", **BATCH, cpu="1"))
    await serve(world, "web", 1, cpu="1", disruption={"max_unavailable": 0})
    await world.until(lambda: world.serving_count("job") == 1)
    await world.add_nodes("n2", cpu=1)
    await world.run(3)
    await serve(world, "filler", 1, cpu="1")
    await drain(world, "n1", deadline=Seconds(60))
    await world.run(50)
    assert world.serving_count("job") == 1
    await world.run(20)
    assert on(world, "n1") == ["web-0"]
    assert told(world, "n1").phase == "Late"
    assert world.events("DrainLate")
    assert world.instance("job-0").phase is Phase.PENDING
    assert world.instance("job-0").spec.attempt == 0
    assert available(world, "web") == 1


@pytest.mark.parametrize("deadline", [None, 30])
async def test_force_asks_no_budget(world: World, deadline: int | None) -> None:
    await world.add_nodes("n1", cpu=2)
    await world.apply(make_workload("job", **BATCH, cpu="1"))
    await serve(world, "web", 1, cpu="1", disruption={"max_unavailable": 0})
    await drain(world, "n1", force=True, deadline=None if deadline is None else Seconds(deadline))
    if deadline is not None:
        await world.run(deadline - 5)
        assert len(on(world, "n1")) == 2
    await world.run(10)
    assert not on(world, "n1")
    assert empty(world, "n1")


async def test_data_stays_where_it_is_unless_it_is_forced(world: World) -> None:
    await world.add_nodes("n1")
    await serve(world, "db", 1, volumes={"data": {"type": "local"}})
    await world.add_nodes("n2")
    await drain(world, "n1")
    await world.run(60)
    assert on(world, "n1") == ["db-0"]
    assert told(world, "n1").waiting == ("1 of default/db: its data (data-db) is on this node",)
    await drain(world, "n1", force=True)
    await world.run(10)
    assert empty(world, "n1")
    assert world.instance("db-0").phase is Phase.PENDING
    await world.change_node("n1", drain=None)
    await world.until(lambda: world.serving_count("db") == 1)


async def test_a_gang_leaves_within_its_budget(world: World) -> None:
    await world.add_nodes("n1", "n2", "n3", cpu=1)
    fields = {"gang": {"min": 2}, "disruption": {"max_unavailable": 1}}
    await serve(world, "ring", 3, cpu="1", **fields)
    await world.add_nodes("n4", "n5", cpu=1)
    await world.run(3)
    least = watch_least(world, "ring")
    await drain(world, "n1", "n2")
    await world.run(1)
    await world.until(lambda: empty(world, "n1", "n2") and world.serving_count("ring") == 3)
    assert min(least) == 2


async def test_stop_first_never_exceeds_the_count(world: World) -> None:
    """Without a budget, a drain may stop as many as an update: a quarter."""
    await world.add_nodes("n1", cpu=8)
    await serve(world, "web", 8, cpu="1", update={"order": "stop-first"})
    await world.add_nodes("n2", cpu=8)
    await world.run(3)
    least, most = watch_least(world, "web"), list[int]()
    world.checks.append(lambda: most.append(len(world.instances("web"))))
    await drain(world, "n1")
    await world.run(1)
    await world.until(lambda: bool(told(world, "n1").waiting))
    assert told(world, "n1").waiting == (
        "6 of default/web: waiting for its update budget (order stop-first, max_unavailable 2)",
    )
    await world.until(lambda: empty(world, "n1") and world.serving_count("web") == 8)
    assert (min(least), max(most)) == (6, 8)
    assert {each.meta.name for each in world.instances("web")} == {f"web-{index}" for index in range(8)}


@pytest.mark.parametrize("order", ["start-first", "stop-first"])
async def test_the_next_one_leaves_when_the_one_before_it_has_been_healthy_for_long_enough(
    world: World, order: str
) -> None:
    await world.add_nodes("n1")
    await serve(world, "web", 3, update={"order": order, "min_healthy": "60s", "deadline": "5m"})
    await world.add_nodes("n2")
    await world.run(3)
    first: dict[str, float] = {}
    """Since when each serves there."""
    left: list[float] = []

    def look() -> None:
        now, found = world.clock.now(), world.instances("web")
        for each in found:
            if each.node == "n2" and each.phase is Phase.RUNNING and each.status.ready:
                first.setdefault(each.meta.uid, now)
        stays = sum(each.node == "n1" and each.spec.stop is None for each in found)
        left.extend([now] * (3 - stays - len(left)))

    world.checks.append(look)
    await drain(world, "n1")
    await world.run(1)
    await world.until(lambda: empty(world, "n1") and world.serving_count("web") == 3)
    healthy = sorted(first.values())
    gone = left if order == "start-first" else left[1:]
    assert len(left) == 3
    assert all(when >= since + 59 for when, since in zip(gone, healthy, strict=False))


async def test_a_single_one_that_stops_first_leaves_and_begins_elsewhere(world: World) -> None:
    await world.add_nodes("n1")
    await serve(world, "leader", 1, update={"order": "stop-first"}, disruption={"max_unavailable": 1})
    await world.add_nodes("n2")
    await world.run(3)
    alive: list[int] = []
    world.checks.append(lambda: alive.append(len(on(world, "n1")) + len(on(world, "n2"))))
    await drain(world, "n1")
    await world.until(lambda: world.serving_count("leader") == 1 and not on(world, "n1"))
    assert max(alive) == 1, "two of it never were there at the same time"
    assert empty(world, "n1")


async def test_a_budget_that_forbids_every_drain_is_reported(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("job", **BATCH, disruption={"max_unavailable": 0}))
    await world.until(lambda: world.serving_count("job") == 1)
    await drain(world, "n1", "n2", deadline=Seconds(5))
    await world.run(15)
    (name,) = {each.node for each in world.instances("job")}
    assert "blocked by its disruption budget (max_unavailable 0" in told(world, name).waiting[0]


@pytest.mark.parametrize("first", ["start", "stop"])
async def test_two_hundred_leave_a_node_and_ninety_percent_serve_at_every_step(world: World, first: str) -> None:
    """The figure of the whole: 200 instances on the node, a budget of 10 %."""
    await world.add_nodes("n1", cpu=200)
    gang = {"gang": {"min": 1}} if first == "stop" else {}
    await serve(world, "web", 200, cpu="1", disruption={"max_unavailable": "10%"}, **gang)
    await world.add_nodes("n2", "n3", cpu=200)
    await world.run(3)
    least = watch_least(world, "web")
    most: list[int] = []
    world.checks.append(lambda: most.append(len(world.instances("web"))))
    await drain(world, "n1")
    await world.run(1)
    await world.until(lambda: empty(world, "n1"))
    assert min(least) >= (200 if first == "start" else 180)
    assert max(most) <= 220
    await world.run(5)
    assert world.serving_count("web") == 200


# Whatever happens meanwhile.

NODES = [f"n{number}" for number in range(1, 6)]
CALM = ["drain", "cancel", "scale", "update", "controllers crash", "scheduler crash", "wait"]
ORDERS = ["start-first", "stop-first"]
FAULTS = [*CALM, "lose", "return", "fail"]


def steps(kinds: list[str]) -> st.SearchStrategy[list[tuple[str, str]]]:
    return st.lists(st.tuples(st.sampled_from(kinds), st.sampled_from(NODES)), min_size=1, max_size=8)


class Trouble:
    """A service of 10 with a budget of 20 % on five nodes, and what happens to it."""

    def __init__(self, world: World, order: str = "start-first") -> None:
        self.world = world
        self.order = order
        self.count = 10
        self.update = 1

    async def begin(self) -> None:
        await self.world.add_nodes(*NODES, cpu=8)
        await self._apply()
        await self.world.until(lambda: self.world.serving_count("web") == self.count)

    async def _apply(self) -> None:
        fields: dict[str, Any] = {"cpu": "1", "disruption": {"max_unavailable": "20%"}, "update": {"order": self.order}}
        await self.world.apply(make_workload("web", replicas=self.count, env={"RUN": str(self.update)}, **fields))

    async def do(self, kind: str, name: str) -> None:
        world = self.world
        if kind == "drain":
            await drain(world, name)
        elif kind == "cancel":
            await world.change_node(name, drain=None)
        elif kind == "scale":
            self.count = 6 + int(name[1]) * 2
            await self._apply()
        elif kind == "update":
            self.update += 1
            await self._apply()
        elif kind == "controllers crash":
            await world.kill("controllers")
            await world.kill("their recorder")
            world.start_controllers()
        elif kind == "scheduler crash":
            await world.kill("scheduler")
            await world.kill("its recorder")
            world.start_scheduler()
        elif kind in {"lose", "return"}:
            world.nodes[name].alive = kind == "return"
        elif kind == "fail":
            for each in world.instances():
                if each.node == name and each.phase is Phase.RUNNING:
                    ended = InstanceStatus(phase=Phase.FAILED, reason="Error", since=world.clock.now())
                    await world.store.commit(Put(each.reported(ended)))
        await world.run(7)

    async def calm_down(self) -> None:
        for name in NODES:
            self.world.nodes[name].alive = True
            if name != "n1":
                await self.world.change_node(name, drain=None)
        await drain(self.world, "n1")


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps(FAULTS), st.sampled_from(ORDERS))
async def test_once_faults_stop_the_drained_node_is_empty_and_all_serve(
    what: list[tuple[str, str]], order: str
) -> None:
    async with World() as world:
        world.checks = [world.check_capacity]
        trouble = Trouble(world, order)
        await trouble.begin()
        for kind, name in what:
            await trouble.do(kind, name)
        await trouble.calm_down()
        await world.run(300, step=2)
        assert told(world, "n1").phase == "Drained"
        assert not on(world, "n1")
        assert world.serving_count("web") == len(world.instances("web")) == trouble.count
        assert not any(each.spec.move for each in world.instances())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps([each for each in CALM if each not in {"scale", "update"}]), st.sampled_from(ORDERS))
async def test_drains_never_break_a_budget_when_instances_crash(what: list[tuple[str, str]], order: str) -> None:
    async with World() as world:
        world.checks = [world.check_capacity]
        trouble = Trouble(world, order)
        await trouble.begin()
        least, most = watch_least(world, "web"), list[int]()
        world.checks.append(lambda: most.append(len(world.instances("web"))))
        for kind, name in what:
            await trouble.do(kind, name)
        assert min(least) >= 8
        assert order == "start-first" or max(most) == 10
