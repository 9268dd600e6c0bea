"""Plugins of the queue: gates, hints and order, and the effect of their errors."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from mandor.lib.steps import at_once
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalFilter
from mandor.placement.framework.points import (
    NODE_EVENTS,
    ClusterChange,
    ClusterEvent,
    FilterPlugin,
    Hint,
    PreEnqueuePlugin,
    QueueSortPlugin,
)
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.plugins.priority_sort import PrioritySort
from mandor.scheduler.attempt import Attempt, AttemptState
from mandor.scheduler.queue import CLOSELY_MOST, SchedulingQueue
from tests.scenarios.make import make_node, make_template

SHAPE = Shape.of(make_template())


def key(name: str) -> Key:
    return Key(Instance.kind, "default", name)


class Gate(PreEnqueuePlugin):
    retry_on = frozenset({ClusterEvent.NODE_ADDED})

    def __init__(self, name: str = "Gate") -> None:
        self.name = name  # type: ignore[misc]
        self.answer: Any = "closed"

    def pre_enqueue(self, request: PlacementRequest) -> str | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


class Desk:
    def __init__(
        self,
        *gates: PreEnqueuePlugin,
        sort: QueueSortPlugin | None = None,
        outright: Sequence[IncrementalFilter] = (),
    ) -> None:
        self.told: list[tuple[str, str]] = []
        self.queue = SchedulingQueue(
            sort or PrioritySort(), gates=lambda request: gates, outright=lambda request: outright, gated=self._tell
        )

    def _tell(self, attempt: Attempt, why: str | PluginFault) -> None:
        self.told.append((attempt.request.key.name, str(why)))

    def add(self, name: str, **fields: Any) -> None:
        self.queue.add(PlacementRequest(key(name), SHAPE, **fields), "u1", 0.0)

    def place(self, name: str) -> AttemptState | None:
        return self.queue.state(key(name))

    def names(self) -> list[str]:
        names = []
        while (attempt := self.queue.pop()) is not None:
            names.append(attempt.request.key.name)
        return names


@pytest.mark.req("S1-32")
def test_the_first_closed_gate_keeps_an_attempt_out() -> None:
    first, second = Gate("First"), Gate("Second")
    desk = Desk(first, second)
    first.answer = None
    desk.add("a")
    assert (desk.place("a"), desk.names(), desk.told) == (AttemptState.GATED, [], [("a", "closed")])
    desk.queue.flush(now=10_000)
    assert desk.place("a") is AttemptState.GATED, "time opens no gate"
    second.answer = None
    at_once(desk.queue.wake_on({ClusterEvent.ROOM_FREED}, now=1))
    assert desk.place("a") is AttemptState.GATED, "not what it waits for"
    at_once(desk.queue.wake_on({ClusterEvent.NODE_ADDED}, now=2))
    assert desk.place("a") is AttemptState.ACTIVE


@pytest.mark.req("S1-32")
def test_a_gated_one_that_changes_is_looked_at_again_and_one_that_is_gone_is_forgotten() -> None:
    gate = Gate()
    desk = Desk(gate)
    desk.add("a")
    desk.add("b")
    gate.answer = None
    desk.add("a")
    assert desk.place("a") is AttemptState.GATED, "nothing has changed about it"
    desk.add("a", priority=5)
    desk.queue.remove(key("b"))
    at_once(desk.queue.wake_on({ClusterEvent.NODE_ADDED}, now=1))
    assert desk.names() == ["a"]


@pytest.mark.parametrize("answer", [RuntimeError("oops"), 7, False])
def test_a_gate_that_goes_wrong_is_asked_again_after_a_pause(answer: Any) -> None:
    gate = Gate()
    gate.answer = answer
    desk = Desk(gate)
    desk.add("a")
    assert desk.place("a") is AttemptState.BACKING_OFF
    assert "the plugin Gate raised" in desk.told[0][1]
    gate.answer = None
    desk.queue.flush(now=1)
    assert desk.names() == ["a"]


class Sorts(QueueSortPlugin):
    name = "Sorts"

    def __init__(self, keys: dict[str, Any]) -> None:
        self.keys = keys

    def sort_key(self, request: PlacementRequest, queued_at: float) -> Hashable:
        found: Hashable = self.keys[request.key.name]
        return found


def test_a_sort_that_raises_costs_only_the_instance_it_raises_for() -> None:
    sort = Sorts({"a": 2, "b": 1})
    desk = Desk(sort=sort)
    for name in ("a", "b", "c"):
        desk.add(name)
    assert desk.place("c") is AttemptState.BACKING_OFF
    assert desk.names() == ["b", "a"]
    sort.keys["c"] = 0
    desk.queue.flush(now=1)
    assert desk.names() == ["c"]


@pytest.mark.parametrize("odd", ["text", (1, 2), None])
def test_sort_keys_that_do_not_compare_lose_no_attempt(odd: Any) -> None:
    sort = Sorts({"a": 3, "b": 2, "c": odd, "d": 1})
    desk = Desk(sort=sort)
    for name in "abcd":
        desk.add(name)
    first = desk.names()
    assert any("do not compare" in why for _, why in desk.told)
    sort.keys["c"] = 4
    for now in (1, 3, 7):
        desk.queue.flush(now=now)
        first += desk.names()
    assert sorted(first) == ["a", "b", "c", "d"]


@pytest.mark.req("S1-31", "S1-40")
def test_a_new_sort_plugin_orders_queued_attempts_again() -> None:
    desk = Desk()
    for name in "abc":
        desk.add(name)
    desk.queue.use(Sorts({"a": 2, "b": 3, "c": 1}), now=0)
    assert desk.names() == ["c", "a", "b"]


class Refuses(FilterPlugin):
    name = "Refuses"
    retry_on = NODE_EVENTS

    def __init__(self, hint: Any) -> None:
        self.answer = hint

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        raise NotImplementedError

    def hint(self, request: PlacementRequest, change: ClusterChange) -> Hint:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


class Silent(Refuses):
    name = "Silent"
    retry_on = frozenset({ClusterEvent.ROOM_FREED})
    hint = FilterPlugin.hint


@pytest.mark.req("S1-33", "S1-34")
@pytest.mark.parametrize(
    ("blamed", "event", "woken"),
    [
        ([Refuses(Hint.SKIP)], ClusterEvent.NODE_ADDED, False),
        ([Refuses(Hint.QUEUE)], ClusterEvent.NODE_ADDED, True),
        ([Refuses(Hint.SKIP), Refuses(Hint.QUEUE)], ClusterEvent.NODE_CHANGED, True),
        ([Refuses(Hint.SKIP), Silent(None)], ClusterEvent.ROOM_FREED, True),
        ([Refuses(Hint.QUEUE)], ClusterEvent.ROOM_FREED, False),
        ([Refuses(RuntimeError("oops"))], ClusterEvent.NODE_ADDED, True),
        ([Refuses("perhaps")], ClusterEvent.NODE_ADDED, True),
        ([], ClusterEvent.NODE_ADDED, True),
    ],
)
def test_a_hint_decides_whether_something_is_worth_a_try(
    blamed: list[FilterPlugin], event: ClusterEvent, woken: bool
) -> None:
    desk = Desk()
    desk.add("a")
    attempt = desk.queue.pop()
    assert attempt is not None
    retry_on = frozenset({ClusterEvent.NODE_ADDED}).union(*(plugin.retry_on for plugin in blamed))
    desk.queue.put_back(attempt, now=0, retry_on=retry_on, blamed=tuple(blamed))
    at_once(desk.queue.wake_on({event}, now=50, details=[ClusterChange(event, make_node("n9"))]))
    assert (desk.place("a") is AttemptState.ACTIVE) is woken


def test_a_gated_attempt_awaits_the_events_of_its_gate() -> None:
    desk = Desk(Gate())
    desk.add("a")
    assert desk.place("a") is AttemptState.GATED
    assert desk.queue.awaits({ClusterEvent.NODE_ADDED})
    assert not desk.queue.awaits({ClusterEvent.ROOM_FREED})


class Bars(IncrementalFilter):
    """Refuses cordoned nodes, and nodes by name."""

    name = "Bars"

    def __init__(self, name: str = "") -> None:
        self._name = name

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        raise NotImplementedError

    def rules_out(self, request: PlacementRequest, node: Node) -> bool:
        if node.meta.name == "broken":
            raise RuntimeError("oops")
        return node.meta.name == self._name if self._name else node.spec.cordoned


def changed(name: str, *, cordoned: bool, was_cordoned: bool) -> ClusterChange:
    before, after = (make_node(name, cordoned=each) for each in (was_cordoned, cordoned))
    return ClusterChange(ClusterEvent.ROOM_FREED, after, before=before)


def freed(name: str, *, cordoned: bool = False) -> ClusterChange:
    return ClusterChange(ClusterEvent.ROOM_FREED, make_node(name, cordoned=cordoned))


@pytest.mark.req("S1-33", "S1-34")
@pytest.mark.parametrize(
    ("by_node", "details", "woken"),
    [
        (True, [freed("n1", cordoned=True)], False),
        (True, [freed("n1", cordoned=True), freed("n2", cordoned=True)], False),
        (True, [freed("n1", cordoned=True), freed("n2")], True),
        (True, [ClusterChange(ClusterEvent.ROOM_FREED)], True),
        (True, [freed("broken")], True),
        (True, [freed("barred")], False),
        (True, [changed("n1", cordoned=True, was_cordoned=True)], False),
        (True, [changed("n1", cordoned=True, was_cordoned=False)], True),
        (True, [changed("n1", cordoned=False, was_cordoned=True)], True),
        (True, [changed("barred", cordoned=False, was_cordoned=True)], True),
        (True, [changed("barred", cordoned=False, was_cordoned=False)], False),
        (True, [freed(f"n{number}", cordoned=True) for number in range(CLOSELY_MOST + 1)], True),
        (False, [freed("n1", cordoned=True)], True),
    ],
)
def test_events_on_a_node_that_is_ruled_out_wake_no_attempt_refused_by_nodes(
    by_node: bool, details: list[ClusterChange], woken: bool
) -> None:
    desk = Desk(outright=[Bars(), Bars("barred")])
    desk.add("a")
    attempt = desk.queue.pop()
    assert attempt is not None
    retry_on = frozenset({ClusterEvent.ROOM_FREED})
    desk.queue.put_back(attempt, now=0, retry_on=retry_on, blamed=(Silent(None),), by_node=by_node)
    at_once(desk.queue.wake_on({ClusterEvent.ROOM_FREED}, now=50, details=details))
    assert (desk.place("a") is AttemptState.ACTIVE) is woken


def test_without_details_plugins_are_not_asked_for_hints() -> None:
    desk = Desk()
    desk.add("a")
    attempt = desk.queue.pop()
    assert attempt is not None
    desk.queue.put_back(attempt, now=0, retry_on=NODE_EVENTS, blamed=(Refuses(Hint.SKIP),))
    at_once(desk.queue.wake_on({ClusterEvent.NODE_ADDED}, now=50))
    assert desk.place("a") is AttemptState.ACTIVE


def test_one_that_is_asked_about_keeps_its_name_and_can_vanish() -> None:
    desk = Desk()
    desk.add("a")
    attempt = desk.queue.pop()
    assert attempt is not None
    desk.queue.hold(attempt)
    desk.add("a", priority=3)
    assert (desk.place("a"), desk.names()) == (AttemptState.CONSULTING, [])
    desk.queue.release(attempt, {"x": 1})
    again = desk.queue.pop()
    assert again is attempt
    assert (again.consulted, again.request.priority) == ({"x": 1}, 3)

    desk.queue.hold(attempt)
    desk.queue.remove(key("a"))
    desk.queue.release(attempt, {})
    assert not desk.queue.drop_held(attempt)
    assert desk.names() == []
