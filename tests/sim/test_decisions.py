"""Decisions are kept for those who ask later: bounded, the remarkable ones first, without holding anybody up."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mandor.model.decision import DecisionRecord
from mandor.scheduler import decision_log
from tests.scenarios.make import make_workload
from tests.scenarios.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        yield made


def kept(world: World, name: str) -> DecisionRecord:
    found = world.find(DecisionRecord, name)
    assert found is not None, sorted(each.meta.name for each in world.all(DecisionRecord))
    return found


@pytest.mark.req("S0-26", "S0-35")
async def test_a_placement_is_kept_with_the_best_nodes_and_the_parts_of_their_scores(world: World) -> None:
    await world.add_nodes("n1", cpu=8)
    await world.add_nodes("n2", cpu=2)
    await world.run(2)
    await world.apply(make_workload("web", replicas=1, cpu=1))
    await world.until(lambda: world.serving_count("web") == 1)
    await world.run(2)

    spec = kept(world, "web-0").spec
    assert (spec.node, spec.profile, spec.attempts, spec.workload) == ("n1", "default", 1, "web")
    assert spec.uid == world.instance("web-0").meta.uid
    assert [each.node for each in spec.best] == ["n1", "n2"]
    for each in spec.best:
        assert each.total == sum(part.weight * part.score for part in each.parts)
    assert spec.best[0].total > spec.best[1].total
    assert kept(world, "web-0").labels == {"workload": "web"}
    assert kept(world, "web-0").node == "n1"


@pytest.mark.req("S0-35")
async def test_a_refusal_is_kept_and_stays_known_when_there_is_a_node_at_last(world: World) -> None:
    await world.add_nodes("n1", cpu=1)
    await world.run(2)
    await world.apply(make_workload("big", replicas=1, cpu=3))
    await world.run(5)
    spec = kept(world, "big-0").spec
    assert spec.node == ""
    assert spec.message == "0/1 nodes fit: 1 NodeResourcesFit (short of 2 cpu)"
    assert spec.best == ()

    await world.add_nodes("n2", cpu=4)
    await world.until(lambda: world.serving_count("big") == 1)
    await world.run(2)
    spec = kept(world, "big-0").spec
    assert spec.node == "n2"
    assert spec.attempts > 1
    assert "1 NodeResourcesFit (short of 2 cpu)" in spec.message


async def test_a_rule_that_was_given_up_is_in_the_decision(world: World) -> None:
    await world.add_nodes("n1")
    await world.run(2)
    await world.apply(make_workload("web", where=[{"rule": "zone == a", "strength": "should"}]))
    await world.until(lambda: world.serving_count("web") == 1)
    await world.run(2)
    assert kept(world, "web-0").spec.relaxed == ("zone == a",)


async def test_of_thousands_a_few_are_kept_and_the_remarkable_ones_before_the_others(world: World) -> None:
    await world.add_nodes("n1", "n2", cpu=400)
    await world.run(2)
    await world.apply(make_workload("many", replicas=1000, cpu="100m"))
    await world.apply(make_workload("odd", replicas=3, where=[{"rule": "zone == a", "strength": "should"}]))
    await world.until(lambda: world.serving_count("many") == 1000 and world.serving_count("odd") == 3)
    await world.run(3)
    names = [each.meta.name for each in world.all(DecisionRecord)]
    assert {"odd-0", "odd-1", "odd-2"} <= set(names)
    assert decision_log.ORDINARY_MOST <= len(names) - 3 < 200


async def test_the_decision_about_another_one_of_that_name_takes_the_place_of_the_old_one(world: World) -> None:
    await world.add_nodes("n1")
    await world.run(2)
    await world.apply(make_workload("web", replicas=2))
    await world.until(lambda: world.serving_count("web") == 2)
    await world.run(2)
    await world.stop_instance("web-0")
    await world.until(lambda: world.serving_count("web") == 1)
    await world.until(lambda: world.serving_count("web") == 2)
    await world.run(2)
    assert kept(world, "web-0").spec.uid == world.instance("web-0").meta.uid
