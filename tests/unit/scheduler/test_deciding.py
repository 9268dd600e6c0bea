"""A decision that takes several turns, with changes between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.cycle import decide
from mandor.placement.decision import Decision, Moment
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.occupancy import AllocationTerms, Rank
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.plugins import default_preemption
from mandor.placement.plugins.priority_sort import PrioritySort
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from mandor.scheduler import deciding
from mandor.scheduler.attempt import Attempt, AttemptState
from mandor.scheduler.deciding import RESTARTS_MOST, Deciding, DecisionInProgress
from mandor.scheduler.metrics import SchedulerMetrics
from mandor.scheduler.queue import SchedulingQueue
from mandor.scheduler.watchdog import Watchdog
from tests.scenarios.make import make_node, make_template

SMALL, LARGE = (Shape.of(make_template(cpu=cpu)) for cpu in (1, 8))
PROFILE = default_profile()
NODES = 12


def key(name: str) -> Key:
    return Key(Instance.kind, "default", name)


@pytest.fixture(autouse=True)
def _little_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_preemption, "PLAYED", 1)
    monkeypatch.setattr(deciding, "TURN", 1)


class Scene:
    """Full nodes, and a pending instance of higher priority."""

    def __init__(self) -> None:
        self.table = Table("seed")
        for number in range(NODES):
            self.table.set_node(make_node(f"n{number}", cpu=8))
        for number in range(8 * NODES):
            identity = Identity("default", f"w{number % 3}", "main")
            terms = AllocationTerms(Rank(number % 2), born=float(number))
            self.table.set_allocation(key(f"i{number}"), f"n{number % NODES}", SMALL, identity, terms)
        self.queue = SchedulingQueue(PrioritySort())
        self.request = PlacementRequest(key("high"), LARGE, 10, identity=Identity("default", "high", "main"))
        self.queue.add(self.request, "u1", 0.0)
        view = SimpleNamespace(table=self.table, state=SimpleNamespace(held=lambda _: ""))
        nominations = SimpleNamespace(moment=lambda _: Moment())
        self.watchdog = Watchdog()
        parts: list[Any] = [view, self.queue, self.watchdog, SchedulerMetrics(), nominations, SimpleNamespace(), None]
        self.deciding = Deciding(*parts)

    def begin(self) -> tuple[Attempt, DecisionInProgress]:
        attempt = self.queue.pop()
        assert attempt is not None
        running = self.deciding.begin(attempt, PROFILE)
        assert isinstance(running, DecisionInProgress)
        return attempt, running

    def expected(self) -> Decision:
        return decide(PROFILE, self.request, self.table.snapshot())

    async def finish(self, running: DecisionInProgress, meanwhile: Callable[[int], None]) -> Decision | None:
        """`meanwhile` is called with its number between two steps."""
        task = asyncio.create_task(self.deciding.finish(running))
        number = 0
        while not task.done():
            meanwhile(number)
            number += 1
            await asyncio.sleep(0)
        self.steps = number
        return task.result()


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_other_tasks_run_between_steps_and_see_an_unchanged_table(scene: Scene) -> None:
    expected, free = scene.expected(), {node.meta.name: scene.table.free(node.meta.name) for node in scene.table.nodes}
    attempt, running = scene.begin()

    def look(_: int) -> None:
        assert {node.meta.name: scene.table.free(node.meta.name) for node in scene.table.nodes} == free
        assert scene.queue.state(attempt.request.key) in {None, AttemptState.DECIDING}

    assert await scene.finish(running, look) == expected
    assert expected.nominated
    assert scene.steps > 5
    assert scene.queue.state(attempt.request.key) is None


async def test_a_decision_starts_again_after_the_table_has_changed(scene: Scene) -> None:
    _, running = scene.begin()

    def change(number: int) -> None:
        if number == 3:
            scene.table.set_node(make_node("new", cpu=8))

    found = await scene.finish(running, change)
    assert found is not None
    assert found.node == "new"


async def test_a_decision_runs_in_one_turn_after_several_changes_of_the_table(scene: Scene) -> None:
    _, running = scene.begin()
    changes = 0

    def change(number: int) -> None:
        nonlocal changes
        changes += 1
        scene.table.drop_allocation(key(f"i{number}"))

    last = Scene()
    found = await scene.finish(running, change)
    for number in range(RESTARTS_MOST - 1):
        last.table.drop_allocation(key(f"i{number}"))
    assert found == last.expected()
    assert changes <= RESTARTS_MOST + 1


async def test_one_that_goes_meanwhile_is_not_decided_on(scene: Scene) -> None:
    attempt, running = scene.begin()

    def remove(number: int) -> None:
        if number == 3:
            scene.queue.remove(attempt.request.key)

    assert await scene.finish(running, remove) is None
    assert len(scene.queue) == 0


async def test_an_instance_whose_request_changed_is_queued_again(scene: Scene) -> None:
    attempt, running = scene.begin()
    other = structs.replace(attempt.request, priority=20)

    def change(number: int) -> None:
        if number == 3:
            scene.queue.add(other, "u1", 0.0)

    assert await scene.finish(running, change) is None
    again = scene.queue.pop()
    assert cast("Attempt", again).request == other


async def test_a_traced_decision_does_not_keep_an_outdated_refusal() -> None:
    """Neither the first instance nor its replica fits; then a node comes, and a traced instance is decided first."""
    scene = Scene()
    huge = Shape.of(make_template(cpu=64))
    requests = [
        PlacementRequest(key(f"huge-{number}"), huge, 0, identity=Identity("default", "huge", "main"))
        for number in range(2)
    ]
    for request in requests:
        scene.queue.add(request, request.key.name, 0.0)
    entries = {each.request.key: each for each in iter(scene.queue.pop, None)}
    first = scene.deciding.begin(entries[requests[0].key], PROFILE)
    assert isinstance(first, Decision)
    assert not first.node

    scene.table.set_node(make_node("wide", cpu=64))
    scene.watchdog.trail = []
    traced = scene.deciding.begin(entries[key("high")], PROFILE)
    assert isinstance(traced, Decision)
    scene.watchdog.trail = None
    found = scene.deciding.begin(entries[requests[1].key], PROFILE)
    assert isinstance(found, Decision)
    assert found.node == "wide"
