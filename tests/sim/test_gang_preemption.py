"""Gangs that take the place of others: for all members or for none, with room held until all of it is free."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.model.decision import DecisionRecord
from mandor.model.phase import Phase
from mandor.model.workload import Workload
from tests.scenarios.make import make_workload
from tests.scenarios.world import World


def gang(replicas: int = 2, **fields: Any) -> Workload:
    return make_workload("mpi", replicas=replicas, **{"gang": {}, "cpu": "2", "priority": 10, **fields})


async def full(world: World, *names: str, **fields: Any) -> None:
    """One core of each node is free, and one instance of `low` is on each, of two cores."""
    await world.add_nodes(*names, cpu=3)
    await world.apply(make_workload("low", replicas=len(names), **{"cpu": "2", "priority": 1, **fields}))
    await world.until(lambda: world.serving_count("low") == len(names))


def stopping(world: World) -> list[str]:
    return sorted(each.meta.name for each in world.instances() if each.spec.stop is not None)


def told(world: World, reason: str) -> list[str]:
    return sorted(each.spec.message for each in world.events(reason))


@pytest.mark.req("S1-35", "S3-27")
async def test_a_gang_takes_the_place_of_as_many_as_it_needs(world: World) -> None:
    await full(world, "n1", "n2", "n3")
    for node in world.nodes.values():
        node.slow_stop = 15
    await world.apply(gang())
    await world.run(5)

    members = world.instances("mpi")
    assert {each.phase for each in members} == {Phase.PENDING}
    assert {each.status.reason for each in members} == {"Nominated"}
    victims = stopping(world)
    nodes = {each.status.nominated for each in members}
    assert len(victims) == len(nodes) == 2
    assert {world.instance(name).node for name in victims} == nodes
    assert "the gang needs 2: 0 would fit; mpi-0 does not" in members[0].status.message
    assert all(name in members[0].status.message for name in victims)
    kept = next(each.spec for each in world.all(DecisionRecord) if each.spec.workload == "mpi")
    assert sorted(kept.victims) == victims

    await world.until(lambda: world.serving_count("mpi") == 2, seconds=60)
    assert {each.node for each in world.instances("mpi")} == nodes
    await world.run(20)
    assert world.serving_count("low") == 1
    assert len(told(world, "Preempted")) == 2, "nobody was told twice"
    assert [text.split(" on ")[1] for text in told(world, "Preempts")] == sorted(nodes)


async def test_no_instance_is_evicted_for_a_gang_that_would_stay_incomplete(world: World) -> None:
    await full(world, "n1", "n2")
    await world.apply(gang(replicas=3))
    await world.run(60)
    assert world.serving_count("low") == 2
    assert not world.events("Preempted")
    assert {each.status.nominated for each in world.instances("mpi")} == {""}


async def test_room_that_was_made_is_held_for_all_members(world: World) -> None:
    await full(world, "n1", "n2")
    world.nodes["n2"].slow_stop = 25
    await world.apply(gang())
    await world.run(5)
    await world.apply(make_workload("late", replicas=2, cpu="2", priority=10))
    await world.until(lambda: world.serving_count("mpi") == 2, seconds=60)
    assert world.serving_count("late") == 0
    assert len(told(world, "Preempted")) == 2


async def test_a_higher_priority_takes_the_room_and_the_whole_gang_is_scheduled_again(world: World) -> None:
    await full(world, "n1", "n2", "n3")
    for node in world.nodes.values():
        node.slow_stop = 15
    await world.apply(gang())
    await world.run(5)
    first = {each.status.nominated for each in world.instances("mpi")}
    pin = {"where": [{"rule": f"node == {min(first)}"}]}
    await world.apply(make_workload("top", replicas=1, cpu="3", priority=100, placement=pin))

    await world.until(lambda: world.serving_count("top") == 1, seconds=60)
    await world.until(lambda: world.serving_count("mpi") == 2, seconds=60)
    assert min(first) not in {each.node for each in world.instances("mpi")}


async def test_a_scheduler_that_starts_afresh_finds_the_room_of_a_gang_held(world: World) -> None:
    await full(world, "n1", "n2", "n3")
    for node in world.nodes.values():
        node.slow_stop = 20
    await world.apply(gang())
    await world.run(5)
    nodes = {each.status.nominated for each in world.instances("mpi")}
    await world.kill("scheduler")
    await world.kill("its recorder")
    world.start_scheduler()
    await world.until(lambda: world.serving_count("mpi") == 2, seconds=60)
    assert {each.node for each in world.instances("mpi")} == nodes
    assert len(told(world, "Preempted")) == 2


async def test_a_budget_is_broken_for_a_gang_only_where_nothing_else_helps(world: World) -> None:
    await full(world, "n1", "n2", disruption={"max_unavailable": 0})
    await world.add_nodes("n3", "n4", cpu=3)
    await world.apply(make_workload("free", replicas=2, cpu="2", priority=1))
    await world.until(lambda: world.serving_count("free") == 2)
    await world.apply(gang())
    await world.until(lambda: world.serving_count("mpi") == 2, seconds=30)
    assert (world.serving_count("low"), world.serving_count("free")) == (2, 0)


SSD = {"where": [{"rule": "disk == ssd", "strength": "should"}]}


async def _ssd_is_being_freed(world: World, seconds: float) -> None:
    await world.add_nodes("n1", "n2", cpu=2, labels={"disk": "ssd"})
    await world.add_nodes("n3", "n4", cpu=2)
    old = make_workload("old", replicas=2, cpu="2", where=[{"rule": "disk == ssd"}])
    await world.apply(old)
    await world.until(lambda: world.serving_count("old") == 2)
    for name in ("n1", "n2"):
        world.nodes[name].slow_stop = seconds
    await world.apply(make_workload("old", replicas=0, cpu="2", where=[{"rule": "disk == ssd"}]))
    await world.apply(gang(placement=SSD))


async def test_a_gang_gives_no_rule_up_while_the_room_for_it_is_being_freed(world: World) -> None:
    await _ssd_is_being_freed(world, 8)
    await world.run(4)
    assert {each.status.nominated for each in world.instances("mpi")} == {"n1", "n2"}
    message = world.instance("mpi-0").status.message
    assert "waits for room on n1, n2 rather than give up `disk == ssd`: " in message
    await world.until(lambda: world.serving_count("mpi") == 2, seconds=30)
    assert {each.node for each in world.instances("mpi")} == {"n1", "n2"}
    assert {each.spec.relaxed for each in world.instances("mpi")} == {()}


async def test_after_its_patience_a_gang_gives_a_rule_up_for_all_members(world: World) -> None:
    await _ssd_is_being_freed(world, 100)
    await world.until(lambda: world.serving_count("mpi") == 2, seconds=60)
    assert {each.node for each in world.instances("mpi")} == {"n3", "n4"}
    assert {each.spec.relaxed for each in world.instances("mpi")} == {("disk == ssd",)}


async def test_a_gang_may_rather_take_the_place_of_others_than_give_a_rule_up(world: World) -> None:
    await world.add_nodes("n1", "n2", cpu=2, labels={"disk": "ssd"})
    await world.apply(make_workload("low", replicas=2, cpu="2", priority=1))
    await world.until(lambda: world.serving_count("low") == 2)
    await world.add_nodes("n3", "n4", cpu=2)
    await world.apply(gang(placement={**SSD, "relax": "after-preemption"}))
    await world.until(lambda: world.serving_count("mpi") == 2, seconds=30)
    assert {each.node for each in world.instances("mpi")} == {"n1", "n2"}
    await world.until(lambda: world.serving_count("low") == 2, seconds=30)


async def test_more_than_fit_into_one_commit_make_room_piece_by_piece(world: World) -> None:
    names = [f"n{index}" for index in range(40)]
    await world.add_nodes(*names, cpu=2)
    await world.apply(make_workload("low", replicas=80, cpu="1", priority=1))
    await world.until(lambda: world.serving_count("low") == 80, seconds=60)
    await world.apply(gang(replicas=40))
    await world.until(lambda: world.serving_count("mpi") == 40, seconds=120)
    assert world.serving_count("low") == 0


@pytest.mark.req("S1-35")
async def test_a_gang_is_bound_when_its_last_victim_has_ended_without_a_pause(world: World) -> None:
    await full(world, "n1", "n2")
    world.nodes["n2"].slow_stop = 0.4
    await world.apply(gang())
    await world.run(0.3, step=0.1)
    assert {each.node for each in world.instances("mpi")} == {""}, "the room on n2 is not free yet"
    await world.run(0.5, step=0.1)
    assert {each.node for each in world.instances("mpi")} == {"n1", "n2"}
