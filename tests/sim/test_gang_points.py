"""Gangs and plugins of other points: who is refused, or waits, takes the others along."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.model.meta import Key
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import PermitPlugin, PreBindPlugin, ReservePlugin, Wait
from mandor.placement.framework.request import PlacementRequest
from tests.scenarios.world import World
from tests.sim.gangs import bound, gang


@pytest.mark.req("S1-28")
async def test_without_the_plugin_members_are_placed_one_by_one(make_world: Any) -> None:
    world = await make_world(without="Gang")
    await world.add_nodes("n1", cpu=2)
    await world.apply(gang(gang={"timeout": "5s"}))
    await world.until(lambda: world.serving_count("mpi") == 2, seconds=10)
    await world.run(20)
    assert world.serving_count("mpi") == 2, "and nothing is given back"


class Picky(ReservePlugin, PermitPlugin, PreBindPlugin):
    """Refuses one member at one point, so often."""

    name = "Picky"

    def __init__(self, at: str, times: int = 1, wait: float = 0) -> None:
        self.at, self.times, self.wait = at, times, wait
        self.begun = self.undone = 0

    def _refuses(self, at: str, request: PlacementRequest) -> bool:
        if at != self.at or not request.key.name.endswith("-1") or self.times <= 0:
            return False
        self.times -= 1
        return True

    def reserve(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        self.begun += 1
        if self._refuses("reserve", request):
            raise RuntimeError("no")

    def unreserve(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        self.undone += 1

    def permit(self, state: CycleState, request: PlacementRequest, node: str) -> Wait | str | None:
        if self._refuses("permit", request):
            return "not this one"
        return None

    async def pre_bind(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        if self._refuses("pre_bind", request):
            raise RuntimeError("no")


@pytest.mark.req("S1-17", "S1-19", "S1-36")
@pytest.mark.parametrize("at", ["reserve", "permit", "pre_bind"])
async def test_one_member_that_is_refused_takes_the_others_with_it(make_world: Any, at: str) -> None:
    picky = Picky(at, times=3)
    world = await make_world(picky)
    await world.add_nodes("n1", cpu=4)
    await world.run(2)
    world.checks.append(lambda: None if len(bound(world)) in {0, 3} else pytest.fail(f"in pieces: {bound(world)}"))
    await world.apply(gang())
    await world.until(lambda: world.serving_count("mpi") == 3, seconds=60)
    assert picky.times == 0
    assert picky.begun == picky.undone + 3


class Slow(PermitPlugin):
    """Has one of them wait."""

    name = "Slow"

    def __init__(self) -> None:
        self.held: Key | None = None

    def permit(self, state: CycleState, request: PlacementRequest, node: str) -> Wait | None:
        if request.key.name != "mpi-0" or self.held is not None:
            return None
        self.held = request.key
        return Wait(20)


async def with_late_members(make_world: Any, slow: Slow) -> World:
    """Create a gang of three whose first member waits, and two more later; none is bound."""
    world: World = await make_world(slow)
    await world.add_nodes("n1", cpu=8)
    await world.run(2)
    for replicas in (3, 5):
        await world.apply(gang(replicas=replicas, gang={"min": 3, "timeout": "60s"}))
        await world.run(3)
        assert bound(world) == [], "mpi-0 waits, and so do the others"
    return world


@pytest.mark.req("S1-18", "S1-20", "S1-21", "S1-22")
async def test_a_late_member_waits_for_the_others_and_follows_them(make_world: Any) -> None:
    slow = Slow()
    world = await with_late_members(make_world, slow)
    assert world.scheduler is not None
    waiting = {each.key.name: each.plugins for each in world.scheduler.handle.waiting()}
    assert waiting == {"mpi-0": ("Slow",), "mpi-3": ("Gang",), "mpi-4": ("Gang",)}

    assert slow.held is not None
    assert world.scheduler.handle.approve(slow.held, "Slow")
    await world.until(lambda: world.serving_count("mpi") == 5, seconds=10)


@pytest.mark.req("S1-19", "S1-21")
async def test_late_members_are_refused_with_those_they_wait_for(make_world: Any) -> None:
    slow = Slow()
    world = await with_late_members(make_world, slow)
    assert world.scheduler is not None
    assert slow.held is not None
    assert world.scheduler.handle.reject(slow.held, "Slow", "not now")
    await world.until(lambda: world.serving_count("mpi") == 5, seconds=20)
