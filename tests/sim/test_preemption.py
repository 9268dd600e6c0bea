"""Preemption end to end: victims, nominations, reserved room, and recovery after a crash."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mandor.lib.clock import settle
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.phase import Phase
from mandor.store.base import Put, Write
from tests.scenarios.make import make_class, make_workload
from tests.scenarios.world import World


async def full(world: World, *names: str, **fields: Any) -> None:
    """Nodes of four cores with two instances of `low` on each, of two cores."""
    await world.add_nodes(*names, cpu=4)
    await world.apply(make_workload("low", replicas=2 * len(names), **{"cpu": "2", "priority": 1, **fields}))
    await world.until(lambda: world.serving_count("low") == 2 * len(names))


def stopping(world: World) -> dict[str, str]:
    return {each.meta.name: each.spec.stop.reason for each in world.instances() if each.spec.stop is not None}


def messages(world: World, reason: str) -> list[str]:
    return [each.spec.message for each in world.events(reason)]


@pytest.mark.req("S1-35", "S3-27")
async def test_a_higher_priority_takes_the_place_of_a_lower_one(world: World) -> None:
    await full(world, "n1", "n2")
    await world.apply(make_workload("high", replicas=1, cpu="2", priority=10))

    await world.until(lambda: world.serving_count("high") == 1, seconds=30)
    await world.run(10)

    assert world.serving_count("low") == 3
    lost = next(each for each in world.instances("low") if each.phase is Phase.PENDING)
    assert lost.status.reason == "Unschedulable"
    high = world.instance("high-0")
    assert (high.status.nominated, high.spec.relaxed) == ("", ())
    assert messages(world, "Preempts") == [f"takes the place of {lost.meta.name} on {high.node}"]
    assert messages(world, "Preempted") == [f"makes room on {high.node} for high-0, which has a higher priority"]


@pytest.mark.req("S3-27")
async def test_a_preempted_instance_returns_when_there_is_room(world: World) -> None:
    await full(world, "n1")
    await world.apply(make_workload("high", replicas=1, cpu="4", priority=10))
    await world.until(lambda: world.serving_count("high") == 1, seconds=30)
    assert world.serving_count("low") == 0

    await world.apply(make_workload("high", replicas=0, cpu="4", priority=10))

    await world.until(lambda: world.serving_count("low") == 2, seconds=60)
    assert {each.spec.attempt for each in world.instances("low")} == {0}


@pytest.mark.req("S1-35")
async def test_a_preempting_instance_is_bound_when_its_last_victim_has_ended_without_a_pause(world: World) -> None:
    await full(world, "n1", "n2")
    for node in world.nodes.values():
        node.slow_stop = 0.3
    await world.apply(make_workload("high", replicas=2, cpu="4", priority=10))
    await world.run(0.2, step=0.1)
    assert len(stopping(world)) == 4
    assert {each.phase for each in world.instances("high")} == {Phase.PENDING}
    await world.run(0.6, step=0.1)
    assert {each.node for each in world.instances("high")} == {"n1", "n2"}


async def test_no_instance_of_equal_or_higher_priority_is_preempted(world: World) -> None:
    await full(world, "n1", priority=10)
    await world.apply(make_workload("equal", replicas=1, cpu="2", priority=10))
    await world.apply(make_workload("lower", replicas=1, cpu="2", priority=9))
    await world.run(60)
    assert world.serving_count("low") == 2
    assert not world.events("Preempts")


@pytest.mark.req("S3-34")
async def test_a_stopping_instance_holds_its_room_and_no_other_is_evicted(world: World) -> None:
    await full(world, "n1", "n2")
    for node in world.nodes.values():
        node.slow_stop = 25
    await world.apply(make_workload("high", replicas=1, cpu="2", priority=10))
    await world.run(20)
    high = world.instance("high-0")
    assert high.phase is Phase.PENDING
    assert high.status.reason == "Nominated"
    assert list(stopping(world).values()) == ["Preempted"]
    assert high.status.nominated == world.instance(next(iter(stopping(world)))).node

    await world.until(lambda: world.serving_count("high") == 1, seconds=30)
    assert len(messages(world, "Preempted")) == 1


async def test_the_room_is_held_against_equal_and_lower_priorities(world: World) -> None:
    await full(world, "n1")
    world.nodes["n1"].slow_stop = 20
    await world.apply(make_workload("high", replicas=1, cpu="3", priority=10))
    await world.run(3)
    assert set(stopping(world).values()) == {"Preempted"}
    # Both have gone, so that there is one core beside what is held.
    await world.apply(make_workload("small", replicas=1, cpu="1", priority=10))
    await world.apply(make_workload("large", replicas=1, cpu="2", priority=9))
    await world.until(lambda: world.serving_count("high") == 1, seconds=40)
    await world.run(10)
    assert world.serving_count("small") == 1
    assert world.serving_count("large") == 0
    assert len(messages(world, "Preempted")) == 2


async def test_a_higher_priority_takes_the_reserved_room(world: World) -> None:
    await full(world, "n1")
    world.nodes["n1"].slow_stop = 20
    await world.apply(make_workload("high", replicas=1, cpu="4", priority=10))
    await world.run(3)
    assert world.instance("high-0").status.nominated == "n1"

    await world.apply(make_workload("higher", replicas=1, cpu="4", priority=100))
    await world.until(lambda: world.serving_count("higher") == 1, seconds=60)
    await world.run(10)

    high = world.instance("high-0")
    assert (high.phase, high.status.nominated) == (Phase.PENDING, "")
    assert len(messages(world, "Preempted")) == 2, "nobody was told twice"
    await world.apply(make_workload("higher", replicas=0, cpu="4", priority=100))
    await world.until(lambda: world.serving_count("high") == 1, seconds=60)


async def test_a_class_that_never_preempts_waits(world: World) -> None:
    await world.store.commit(Put(make_class("patient", 100, preempt="never")))
    await full(world, "n1")
    await world.apply(make_workload("high", replicas=1, cpu="2", priority="patient"))
    await world.run(30)
    assert world.serving_count("low") == 2
    await world.apply(make_workload("low", replicas=1, cpu="2", priority=1))
    await world.until(lambda: world.serving_count("high") == 1, seconds=30)


async def test_an_instance_with_preempt_never_stays(world: World) -> None:
    await full(world, "n1", disruption={"preempt": "never"})
    await world.apply(make_workload("high", replicas=1, cpu="2", priority=10))
    await world.run(30)
    assert world.serving_count("low") == 2

    await world.apply(make_workload("low", replicas=2, cpu="2", priority=1))
    await world.until(lambda: world.serving_count("high") == 1, seconds=400)


async def test_a_budget_is_broken_only_where_nothing_else_helps(world: World) -> None:
    await world.add_nodes("n1", "n2", cpu=2)
    await world.apply(make_workload("kept", replicas=1, cpu="2", priority=1, disruption={"max_unavailable": 0}))
    await world.until(lambda: world.serving_count("kept") == 1)
    await world.apply(make_workload("free", replicas=1, cpu="2", priority=1))
    await world.until(lambda: world.serving_count("free") == 1)

    await world.apply(make_workload("high", replicas=1, cpu="2", priority=10))
    await world.until(lambda: world.serving_count("high") == 1, seconds=30)
    assert (world.serving_count("kept"), world.serving_count("free")) == (1, 0)

    await world.apply(make_workload("high", replicas=2, cpu="2", priority=10))
    await world.until(lambda: world.serving_count("high") == 2, seconds=30)
    assert (world.serving_count("kept"), world.serving_count("free")) == (0, 0)


@pytest.mark.req("S3-37")
async def test_a_cascade_comes_to_its_end(world: World) -> None:
    places = {"n1": ("high", 4, 30), "n2": ("middle", 2, 20), "n3": ("low", 2, 10)}
    for node, (name, cpu, priority) in places.items():
        await world.add_nodes(node, cpu=2 if node == "n3" else 4)
        rules = {"where": [{"rule": "node == n3"}]} if name == "low" else {}
        wanted = make_workload(name, replicas=1, cpu=str(cpu), priority=priority, placement=rules)
        await world.apply(wanted)
        await world.until(lambda name=name: world.serving_count(name) == 1)  # type: ignore[misc]
    assert {each.spec.workload: each.node for each in world.instances()} == {"high": "n1", "middle": "n2", "low": "n3"}
    world.nodes["n3"].slow_stop = 5

    pin = {"where": [{"rule": "node == n1"}]}
    await world.apply(make_workload("top", replicas=1, cpu="4", priority=1000, placement=pin))

    await world.until(lambda: all(world.serving_count(name) == 1 for name in ("top", "high", "middle")), seconds=120)
    await world.run(60)
    assert world.serving_count("low") == 0
    assert len(messages(world, "Preempted")) == 3
    assert not stopping(world)


@pytest.mark.req("S3-36")
@pytest.mark.parametrize("seed", range(4))
async def test_in_whatever_order_they_come_the_important_ones_run_in_the_end(seed: int) -> None:
    async with World(seed=str(seed)) as world:
        world.checks = [world.check_capacity, world.check_count]
        await world.add_nodes("n1", "n2", cpu=4)
        wanted = [(f"w{priority}", priority) for priority in (10, 20, 30, 40, 50, 60)]
        random.Random(seed).shuffle(wanted)
        for name, priority in wanted:
            await world.apply(make_workload(name, replicas=1, cpu="2", priority=priority))
            await world.run(3)
        await world.until(lambda: all(world.serving_count(f"w{each}") == 1 for each in (30, 40, 50, 60)), seconds=120)
        await world.run(30)
        assert (world.serving_count("w10"), world.serving_count("w20")) == (0, 0)


async def test_a_batch_that_had_to_go_has_lost_no_retry(world: World) -> None:
    await world.add_nodes("n1", cpu=2)
    batch = {"completions": 1, "retries": 0}
    await world.apply(make_workload("job", type="batch", batch=batch, cpu="2", priority=1))
    await world.until(lambda: world.serving_count("job") == 1)
    await world.apply(make_workload("high", replicas=1, cpu="2", priority=10))
    await world.until(lambda: world.serving_count("high") == 1, seconds=30)
    await world.apply(make_workload("high", replicas=0, cpu="2", priority=10))
    await world.until(lambda: world.serving_count("job") == 1, seconds=60)
    assert world.instance("job-0").spec.attempt == 0

    world.nodes["n1"].behave = lambda each: InstanceStatus(phase=Phase.SUCCEEDED, since=world.clock.now())
    await world.until(lambda: world.workload("job").status.phase == "Succeeded", seconds=30)


# Patience.


async def test_a_rule_is_not_given_up_while_the_room_for_it_is_being_freed(world: World) -> None:
    await world.add_nodes("n1", cpu=2, labels={"disk": "ssd"})
    await world.add_nodes("n2", cpu=2)
    await world.apply(make_workload("old", replicas=1, cpu="2", where=[{"rule": "disk == ssd"}]))
    await world.until(lambda: world.serving_count("old") == 1)
    world.nodes["n1"].slow_stop = 8
    await world.apply(make_workload("old", replicas=0, cpu="2", where=[{"rule": "disk == ssd"}]))
    rules = {"where": [{"rule": "disk == ssd", "strength": "should"}]}
    await world.apply(make_workload("new", replicas=1, cpu="2", placement=rules))
    await world.run(4)

    new = world.instance("new-0")
    assert (new.status.reason, new.status.nominated) == ("Nominated", "n1")
    assert new.status.message == "waits for room on n1 rather than give up `disk == ssd`: old-0 will be gone"

    await world.until(lambda: world.serving_count("new") == 1, seconds=30)
    assert (world.instance("new-0").node, world.instance("new-0").spec.relaxed) == ("n1", ())


async def test_after_its_patience_a_rule_is_given_up(world: World) -> None:
    await world.add_nodes("n1", cpu=2, labels={"disk": "ssd"})
    await world.add_nodes("n2", cpu=2)
    await world.apply(make_workload("old", replicas=1, cpu="2", where=[{"rule": "disk == ssd"}]))
    await world.until(lambda: world.serving_count("old") == 1)
    world.nodes["n1"].slow_stop = 100
    await world.apply(make_workload("old", replicas=0, cpu="2", where=[{"rule": "disk == ssd"}]))
    rules = {"where": [{"rule": "disk == ssd", "strength": "should"}], "patience": "20s"}
    await world.apply(make_workload("new", replicas=1, cpu="2", placement=rules))
    await world.run(18)
    assert world.instance("new-0").phase is Phase.PENDING
    await world.until(lambda: world.serving_count("new") == 1, seconds=10)
    assert (world.instance("new-0").node, world.instance("new-0").spec.relaxed) == ("n2", ("disk == ssd",))


@pytest.mark.parametrize("relax", ["before-preemption", "after-preemption"])
async def test_what_comes_first_is_reported_by_the_workload(world: World, relax: str) -> None:
    await world.add_nodes("n1", cpu=2, labels={"disk": "ssd"})
    await world.add_nodes("n2", cpu=2)
    await world.apply(make_workload("low", replicas=1, cpu="2", where=[{"rule": "disk == ssd"}]))
    await world.until(lambda: world.serving_count("low") == 1)
    rules = {"where": [{"rule": "disk == ssd", "strength": "should"}], "relax": relax}
    await world.apply(make_workload("high", replicas=1, cpu="2", priority=10, placement=rules))
    await world.until(lambda: world.serving_count("high") == 1, seconds=30)
    expected = ("n2", ("disk == ssd",), 1) if relax == "before-preemption" else ("n1", (), 0)
    high = world.instance("high-0")
    assert (high.node, high.spec.relaxed, world.serving_count("low")) == expected


# Crashes.


async def test_a_new_scheduler_restores_nominations(world: World) -> None:
    await full(world, "n1", "n2")
    for node in world.nodes.values():
        node.slow_stop = 30
    await world.apply(make_workload("high", replicas=1, cpu="2", priority=10))
    await world.run(3)
    victim, place = next(iter(stopping(world))), world.instance("high-0").status.nominated
    assert place

    await world.kill("scheduler")
    await world.kill("its recorder")
    world.start_scheduler()
    await world.apply(make_workload("other", replicas=1, cpu="2", priority=10))
    await world.run(20)

    assert victim in stopping(world)
    assert world.instance("high-0").status.nominated == place
    await world.until(lambda: world.serving_count("high") == 1, seconds=60)
    assert world.instance("high-0").node == place


async def test_no_instance_is_evicted_for_a_deleted_one(world: World) -> None:
    await full(world, "n1")
    commit = world.store.commit

    async def first_deleted(*writes: Write) -> int:
        if any(isinstance(each, Put) and isinstance(each.value, Instance) and each.value.spec.stop for each in writes):
            world.store.commit = commit  # type: ignore[method-assign]
            await world.delete(world.workload("high"))
            await world.stop_instance("high-0")
        return await commit(*writes)

    world.store.commit = first_deleted  # type: ignore[method-assign]
    await world.apply(make_workload("high", replicas=1, cpu="2", priority=10))
    await world.run(30)
    assert world.store.commit == commit
    assert world.serving_count("low") == 2
    assert not world.events("Preempted")
    await world.apply(make_workload("equal", replicas=1, cpu="2", priority=1))
    await world.apply(make_workload("low", replicas=1, cpu="2", priority=1))
    await world.until(lambda: world.serving_count("equal") == 1, seconds=30)


@pytest.mark.parametrize("seed", range(6))
async def test_crashes_at_any_point_lose_nothing(seed: int) -> None:
    """Schedulers that die whenever they like: capacity holds, and the most important run in the end."""
    dice = random.Random(seed)
    async with World(seed=str(seed)) as world:
        world.checks = [world.check_capacity, world.check_count]
        await world.add_nodes("n1", "n2", "n3", cpu=4)
        for name, priority in (("low", 1), ("middle", 5), ("high", 9)):
            await world.apply(make_workload(name, replicas=dice.randint(3, 5), cpu="2", priority=priority))
            for _ in range(dice.randint(1, 6)):
                await world.run(dice.choice([0.5, 1, 2]))
                if dice.random() < 0.6:
                    await settle(dice.randint(0, 40))
                    await world.kill("scheduler")
                    await world.kill("its recorder")
                    world.start_scheduler()
        wanted = world.workload("high").spec.groups["main"].count
        await world.until(lambda: world.serving_count("high") == wanted, seconds=120)
        await world.until(
            lambda: sum(world.serving_count(each) for each in ("low", "middle", "high")) == 6, seconds=120
        )
        await world.run(30)
        assert not stopping(world)
