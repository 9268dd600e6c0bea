"""Each decision of a gang is counted in the metrics once and logged once, whatever its result."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.placement.decision import Decision
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import FilterPlugin
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import NodeView
from mandor.placement.gang import GangTrial
from mandor.placement.table import Table
from mandor.scheduler import gang_cycle
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.decision_log import DecisionLog
from tests.scenarios.make import make_workload
from tests.scenarios.world import World
from tests.sim.gangs import bound, gang


class Decisions:
    """Records the decisions about gangs, and those that the decision log gets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.logged: list[Decision] = []
        self.trials = 0
        note = DecisionLog.note

        def noted(log: DecisionLog, attempt: Attempt, profile: Profile, decision: Decision, table: Table) -> None:
            if attempt.request.identity.workload == "mpi":
                self.logged.append(decision)
            note(log, attempt, profile, decision, table)

        def counted(*parts: Any, **options: Any) -> GangTrial:
            self.trials += 1
            return GangTrial(*parts, **options)

        monkeypatch.setattr(DecisionLog, "note", noted)
        monkeypatch.setattr(gang_cycle, "GangTrial", counted)


def attempts(world: World) -> dict[str, int]:
    """Return the decisions by result, as the metrics count them."""
    assert world.scheduler is not None
    found: dict[str, int] = {}
    for (result, _), count in world.scheduler._metrics.attempts.items():
        found[result] = found.get(result, 0) + int(count)
    return found


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> Decisions:
    return Decisions(monkeypatch)


async def test_the_members_of_a_gang_are_counted_and_logged_once_beyond_its_minimum_too(
    world: World, decisions: Decisions
) -> None:
    await world.add_nodes("n1", "n2", cpu=4)
    await world.run(2)
    await world.apply(gang(replicas=6, gang={"min": 2}))
    await world.until(lambda: world.serving_count("mpi") == 6)
    assert decisions.trials == 1, "all members are decided together"
    assert sorted(each.key.name for each in decisions.logged) == sorted(bound(world))
    assert attempts(world) == {"placed": 6}


async def test_late_members_of_a_gang_are_counted_and_logged_once(world: World, decisions: Decisions) -> None:
    await world.add_nodes("n1", "n2", cpu=4)
    await world.run(2)
    await world.apply(gang(replicas=2, gang={"min": 2}))
    await world.until(lambda: world.serving_count("mpi") == 2)
    await world.apply(gang(replicas=4, gang={"min": 2}))
    await world.until(lambda: world.serving_count("mpi") == 4)
    assert sorted(each.key.name for each in decisions.logged) == sorted(bound(world))
    assert attempts(world) == {"placed": 4}


async def test_a_refused_gang_is_counted_and_logged_once_for_each_decision(world: World, decisions: Decisions) -> None:
    await world.add_nodes("n1", "n2", cpu=1)
    await world.run(2)
    await world.apply(gang())
    await world.until(lambda: bool(decisions.logged))
    await world.run(10)
    assert {each.message for each in decisions.logged} == {
        "the gang needs 3: 2 would fit; mpi-2 does not: 0/2 nodes fit: 2 NodeResourcesFit (short of 1 cpu)"
    }
    assert attempts(world) == {"refused": len(decisions.logged)}
    assert len(decisions.logged) == decisions.trials


async def test_a_gang_that_preempts_is_counted_and_logged_once_as_nominated(world: World, decisions: Decisions) -> None:
    await world.add_nodes("n1", cpu=3)
    await world.apply(make_workload("low", replicas=3, cpu="1"))
    await world.until(lambda: world.serving_count("low") == 3)
    before = attempts(world)["placed"]
    await world.apply(make_workload("mpi", replicas=3, cpu="1", gang={}, priority=9))
    await world.until(lambda: world.serving_count("mpi") == 3, seconds=60)
    nominated = [each for each in decisions.logged if each.nominated]
    assert len(nominated) == 1
    assert len(nominated[0].victims) == 3
    found = attempts(world)
    assert found["nominated"] == 1
    assert found["placed"] - before == sum(bool(each.node) for each in decisions.logged) == 3


class Broken(FilterPlugin):
    """Fails at first."""

    name = "Broken"

    def __init__(self) -> None:
        self.works = False

    def filter_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> bool:
        if not self.works:
            raise RuntimeError("no")
        return True


async def test_a_gang_whose_plugin_fails_is_counted_and_logged_as_a_fault(
    make_world: Any, decisions: Decisions
) -> None:
    broken = Broken()
    world = await make_world(broken)
    await world.add_nodes("n1", cpu=4)
    await world.run(2)
    await world.apply(gang())
    await world.until(lambda: bool(decisions.logged))
    broken.works = True
    await world.until(lambda: world.serving_count("mpi") == 3, seconds=60)
    faults = [each for each in decisions.logged if each.fault]
    assert {each.fault for each in faults} == {"Broken"}
    assert attempts(world) == {"fault": len(faults), "placed": 3}
    assert decisions.trials == len(faults) + 1
