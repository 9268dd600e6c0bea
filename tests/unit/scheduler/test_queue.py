"""The scheduling queue, with time passed in."""

from __future__ import annotations

import pytest

from mandor.lib.delay import Delay
from mandor.lib.steps import at_once
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.framework.points import NODE_EVENTS, ClusterEvent
from mandor.placement.framework.request import GangMembership, PlacementRequest, Shape
from mandor.placement.plugins.priority_sort import PrioritySort
from mandor.scheduler.attempt import Attempt, AttemptState
from mandor.scheduler.queue import FLUSHED_MOST, WOKEN, SchedulingQueue
from tests.scenarios.make import make_template

SHAPE = Shape.of(make_template())
ROOM = frozenset({ClusterEvent.ROOM_FREED})


def key(name: str) -> Key:
    return Key(Instance.kind, "default", name)


def make_queue(*names: str) -> SchedulingQueue:
    queue = SchedulingQueue(PrioritySort())
    for name in names:
        add(queue, name)
    return queue


def add(queue: SchedulingQueue, name: str, *, priority: int = 0, at: float = 0.0, uid: str = "u1") -> None:
    queue.add(PlacementRequest(key(name), SHAPE, priority=priority), uid, at)


def pop(queue: SchedulingQueue) -> Attempt:
    attempt = queue.pop()
    assert attempt is not None
    return attempt


def drain(queue: SchedulingQueue) -> list[str]:
    names = []
    while (attempt := queue.pop()) is not None:
        names.append(attempt.request.key.name)
    return names


def test_the_queue_orders_by_priority_then_age_then_arrival() -> None:
    queue = make_queue()
    add(queue, "young", at=20)
    add(queue, "old", at=10)
    add(queue, "low", priority=-5, at=1)
    add(queue, "high", priority=9, at=30)
    add(queue, "same", at=20)
    assert drain(queue) == ["high", "old", "young", "same", "low"]


def test_attempts_that_were_not_decided_are_next_again() -> None:
    queue = make_queue("a", "b", "c", "d")
    add(queue, "old", at=-1)
    assert pop(queue).request.key.name == "old"
    first, *others = queue.pop_while(lambda _: True, 3)
    add(queue, "older", at=-2)
    queue.put_first(others)
    assert [each.state for each in others] == [AttemptState.ACTIVE] * 2
    assert first.request.key.name == "a"
    assert drain(queue) == ["older", "b", "c", "d"]


def test_one_that_is_known_keeps_its_place() -> None:
    queue = make_queue("a")
    queue.put_back(pop(queue), now=0, retry_on=ROOM)
    add(queue, "a")
    assert queue.state(key("a")) is AttemptState.UNSCHEDULABLE
    assert len(queue) == 1


def test_another_one_of_the_same_name_starts_anew() -> None:
    queue = make_queue("a")
    queue.put_back(pop(queue), now=0, retry_on=ROOM)
    add(queue, "a", uid="u2")
    assert queue.state(key("a")) is AttemptState.ACTIVE
    assert pop(queue).failures == 0


def test_a_removed_attempt_is_never_popped() -> None:
    queue = make_queue("a", "b", "c")
    queue.remove(key("b"))
    queue.remove(key("nobody"))
    assert drain(queue) == ["a", "c"]
    assert len(queue) == 0


@pytest.mark.req("S1-39")
def test_a_failure_pauses_for_a_second_and_then_twice_as_long_up_to_ten() -> None:
    queue = make_queue("a")
    now = 100.0
    for pause in (1, 2, 4, 8, 10, 10):
        queue.back_off(pop(queue), now=now)
        queue.flush(now=now + pause - 0.01)
        assert queue.state(key("a")) is AttemptState.BACKING_OFF
        assert queue.next_at() == now + pause
        now += pause
        queue.flush(now=now)
        assert queue.state(key("a")) is AttemptState.ACTIVE


@pytest.mark.req("S1-39", "S1-33")
@pytest.mark.req("S1-39")
def test_an_activated_attempt_skips_the_rest_of_its_pause() -> None:
    queue = make_queue("pausing", "unschedulable", "parked")
    taken = [pop(queue) for _ in range(3)]
    queue.back_off(taken[0], now=0)
    queue.put_back(taken[1], now=0, retry_on=ROOM)
    queue.park(taken[2])
    for name in ("pausing", "unschedulable", "parked", "unknown"):
        queue.activate(key(name))
    assert drain(queue) == ["pausing", "unschedulable"]
    queue.flush(now=100)
    assert drain(queue) == [], "the old pause has no effect"


def test_a_changed_back_off_applies_to_current_pauses() -> None:
    queue = make_queue("a", "b")
    queue.back_off(pop(queue), now=0)
    queue.use(PrioritySort(), now=0, pause=Delay(first_seconds=5, most_seconds=60))
    queue.back_off(pop(queue), now=0)
    queue.flush(now=4.9)
    assert queue.pop() is None
    queue.flush(now=5)
    assert drain(queue) == ["a", "b"]


def test_an_unschedulable_attempt_waits_for_its_events() -> None:
    queue = make_queue("room", "node")
    queue.put_back(pop(queue), now=0, retry_on=ROOM)
    queue.put_back(pop(queue), now=0, retry_on=NODE_EVENTS)
    at_once(queue.wake_on({ClusterEvent.ROOM_FREED}, now=50))
    assert (queue.state(key("room")), queue.state(key("node"))) == (AttemptState.ACTIVE, AttemptState.UNSCHEDULABLE)
    at_once(queue.wake_on({ClusterEvent.NODE_ADDED}, now=50))
    assert queue.state(key("node")) is AttemptState.ACTIVE
    at_once(queue.wake_on(set(), now=60))


def test_a_change_that_comes_during_the_pause_is_not_forgotten() -> None:
    queue = make_queue("a")
    queue.put_back(pop(queue), now=10, retry_on=ROOM)
    at_once(queue.wake_on(ROOM, now=10.2))
    assert queue.state(key("a")) is AttemptState.BACKING_OFF
    queue.flush(now=11)
    assert queue.state(key("a")) is AttemptState.ACTIVE


@pytest.mark.req("S1-39")
def test_after_five_minutes_all_waiting_instances_are_retried() -> None:
    queue = make_queue("a", "b")
    queue.put_back(pop(queue), now=0, retry_on=frozenset())
    queue.put_back(pop(queue), now=100, retry_on=frozenset())
    assert queue.next_at() == 300
    queue.flush(now=299)
    assert drain(queue) == []
    queue.flush(now=300)
    assert drain(queue) == ["a"]
    assert queue.next_at() == 400


def test_an_idle_queue_waits_for_nothing() -> None:
    queue = make_queue("a")
    assert queue.next_at() is None
    queue.back_off(pop(queue), now=0)
    queue.remove(key("a"))
    assert queue.next_at() is None


def test_a_retry_is_active_at_once() -> None:
    queue = make_queue("a")
    queue.retry(pop(queue))
    attempt = pop(queue)
    assert attempt.failures == 1


# Gangs.

GANG = ("default", "mpi", "main")


def add_members(queue: SchedulingQueue, *names: str) -> None:
    for name in names:
        queue.add(PlacementRequest(key(name), SHAPE, member=GangMembership(GANG, 3, 60.0)), "u1", 0.0)


def put_back_together(queue: SchedulingQueue, retry_on: frozenset[ClusterEvent] = ROOM) -> list[str]:
    """As after a decision that found too little; identity was in it."""
    members = queue.gather(pop(queue))
    for each in members:
        assert queue.drop_held(each)
    queue.put_back(members[0], now=0.0, retry_on=retry_on)
    for each in members[1:]:
        queue.park(each)
    return sorted(each.request.key.name for each in members)


def test_a_gang_is_gathered_from_wherever_its_members_are() -> None:
    queue = make_queue("other")
    add_members(queue, "a", "b", "c", "d")
    pop(queue)  # other
    queue.put_back(pop(queue), now=0.0, retry_on=ROOM)
    queue.back_off(pop(queue), now=0.0)
    gathered = [each.request.key.name for each in queue.gather(pop(queue))]
    assert gathered[0] == "c"
    assert sorted(gathered) == ["a", "b", "c", "d"]
    assert queue.pop() is None
    assert queue.next_at() is None


def test_one_event_wakes_a_gang_once() -> None:
    queue = make_queue()
    add_members(queue, "a", "b", "c")
    assert put_back_together(queue) == ["a", "b", "c"]
    at_once(queue.wake_on(ROOM, now=60.0))
    assert pop(queue).request.key.name == "a"
    assert queue.pop() is None


def test_a_new_member_brings_the_gang_together_again() -> None:
    queue = make_queue()
    add_members(queue, "a", "b")
    put_back_together(queue, retry_on=frozenset())
    add_members(queue, "c")
    assert put_back_together(queue) == ["a", "b", "c"]


def test_when_the_one_that_speaks_for_a_gang_goes_another_does() -> None:
    queue = make_queue()
    add_members(queue, "a", "b", "c")
    put_back_together(queue)
    queue.remove(key("a"))
    assert put_back_together(queue) == ["b", "c"]
    queue.remove(key("c"))  # parked: nobody else has to know
    assert queue.pop() is None
    at_once(queue.wake_on(ROOM, now=60.0))
    assert pop(queue).request.key.name == "b"
    assert len(queue) == 0


def test_a_member_that_leaves_the_gang_is_parked_no_more() -> None:
    queue = make_queue()
    add_members(queue, "a", "b")
    put_back_together(queue)
    add(queue, "b")
    assert pop(queue).request.key.name == "b"
    assert queue.pop() is None


def test_changed_plugins_release_gated_instances() -> None:
    queue = make_queue()
    add_members(queue, "a", "b")
    put_back_together(queue)
    queue.use(PrioritySort(), now=60.0)
    assert sorted(drain(queue)) == ["a", "b"]


def test_attempts_are_woken_in_steps_and_removed_ones_are_skipped() -> None:
    names = [f"w{number}" for number in range(5 * WOKEN)]
    queue = make_queue(*names)
    for _ in names:
        queue.put_back(pop(queue), now=0, retry_on=ROOM)
    waking = queue.wake_on(ROOM, now=100)
    next(waking)
    assert queue.lengths()[AttemptState.ACTIVE] == WOKEN
    queue.remove(key(names[-1]))
    for _ in waking:
        pass
    assert queue.lengths()[AttemptState.ACTIVE] == len(queue) == len(names) - 1


def test_flush_activates_a_limited_number_and_the_rest_is_due_now() -> None:
    queue = make_queue(*(f"w{number}" for number in range(FLUSHED_MOST + 1)))
    for _ in range(FLUSHED_MOST + 1):
        queue.back_off(pop(queue), now=0)
    queue.flush(now=100)
    assert queue.lengths()[AttemptState.BACKING_OFF] == 1
    at = queue.next_at()
    assert at is not None
    assert at <= 100
    queue.flush(now=100)
    assert queue.lengths()[AttemptState.BACKING_OFF] == 0


def test_the_queue_awaits_the_events_of_waiting_attempts_only() -> None:
    queue = make_queue("a", "b")
    assert not queue.awaits(frozenset(ClusterEvent))
    for retry_on in (ROOM, frozenset({ClusterEvent.VOLUME})):
        queue.put_back(pop(queue), now=0.0, retry_on=retry_on)
    assert queue.awaits({ClusterEvent.ROOM_FREED, ClusterEvent.PLACED})
    assert queue.awaits({ClusterEvent.VOLUME})
    assert not queue.awaits({ClusterEvent.PLACED})
    for name in ("a", "b"):
        queue.remove(key(name))
    assert not queue.awaits({ClusterEvent.VOLUME})
    add(queue, "c")
    queue.put_back(pop(queue), now=0.0, retry_on=ROOM)
    assert queue.awaits(ROOM)
    assert not queue.awaits({ClusterEvent.VOLUME})
