"""FairQueue: lanes by importance, identities by weight, and bounded queues."""

import contextlib
from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.api.http.fair_queue import LIMITS, NO_LIMIT, FairQueue, Lane, LaneLimits, Ticket
from mandor.errors import TooMany

SMALL = LaneLimits(slots=3, reserved=1, slots_each=2, waiting=8, waiting_each=4)
ALL_SMALL = dict.fromkeys(Lane, SMALL) | {Lane.HEARTBEAT: LIMITS[Lane.HEARTBEAT]}
SLOTS = 5


def unbounded_queues(**changed: int) -> dict[Lane, LaneLimits]:
    """Limits of lanes whose queues are practically unbounded."""
    fields = {"slots": 1, "reserved": 1, "slots_each": 1, "waiting": NO_LIMIT, "waiting_each": NO_LIMIT} | changed
    return {lane: LaneLimits(**fields) for lane in Lane}


asks = st.tuples(st.just("ask"), st.sampled_from(list(Lane)), st.sampled_from("abcd"), st.integers(1, 4))
leaves = st.tuples(st.just("leave"), st.integers(0, 1000))
limits = st.tuples(st.just("limit"), st.sampled_from([Lane.REPORT, Lane.BULK]), st.sampled_from([None, 1, 2]))


@pytest.mark.req("S0-19")
@given(st.lists(st.one_of(asks, asks, leaves, limits), max_size=120))
def test_queues_stay_bounded_and_no_slot_stays_free_while_a_request_may_have_it(steps: list) -> None:  # type: ignore[type-arg]
    queue = FairQueue(ALL_SMALL, SLOTS)
    live: list[Ticket] = []
    for step in steps:
        if step[0] == "ask":
            with contextlib.suppress(TooMany):
                live.append(queue.enqueue(step[1], step[2], cost=step[3], size_bytes=7))
        elif step[0] == "leave" and live:
            ticket = live.pop(step[1] % len(live))
            for each in queue.release(ticket):
                assert each.admitted
                assert not each.released
        elif step[0] == "limit":
            queue.set_slots(step[1], step[2])
        check(queue, live)
    while live:
        queue.release(live.pop(0))
        check(queue, live)
    assert all(queue.waiting(lane) == queue.admitted(lane) == 0 for lane in Lane)
    assert queue.held_bytes == 0


def check(queue: FairQueue, live: list[Ticket]) -> None:
    seated = Counter((each.lane, each.flow.identity) for each in live if each.admitted)
    by_lane = Counter(each.lane for each in live if each.admitted)
    waiting = Counter((each.lane, each.flow.identity) for each in live if not each.admitted)
    waiting_by_lane = Counter(each.lane for each in live if not each.admitted)
    assert queue.held_bytes == 7 * sum(waiting.values())
    for lane in Lane:
        assert queue.admitted(lane) == by_lane[lane]
        assert queue.waiting(lane) == waiting_by_lane[lane] <= SMALL.waiting
        if lane is Lane.HEARTBEAT:
            assert not queue.waiting(lane), "a heartbeat never waits"
            continue
        assert by_lane[lane] <= SMALL.slots
    for (lane, identity), count in waiting.items():
        assert count <= SMALL.waiting_each
        # Work-conserving: an identity waits only if it or its lane holds its maximum of slots.
        lane_queue = queue._queues[lane]
        full = by_lane[lane] >= lane_queue.limits.slots
        taken = sum(by_lane.values()) >= SLOTS and by_lane[lane] >= lane_queue.limits.reserved
        assert full or taken or seated[lane, identity] >= lane_queue.limits.slots_each


@given(
    weights=st.lists(st.integers(1, 5), min_size=2, max_size=6),
    costs=st.lists(st.integers(1, 3), min_size=6, max_size=6),
)
def test_identities_that_always_wait_get_work_in_the_proportion_of_their_weights(
    weights: list[int], costs: list[int]
) -> None:
    queue = FairQueue(unbounded_queues(), slots=1)
    begun = queue.enqueue(Lane.BULK, "first")
    waiting: deque[Ticket] = deque()
    rounds = 12
    for number, weight in enumerate(weights):
        for _ in range(rounds * min(len(weights), 3)):  # more than it can get
            waiting.append(queue.enqueue(Lane.BULK, str(number), weight=weight, cost=costs[number]))
    worked: Counter[str] = Counter()
    now = begun
    most = rounds * min(len(weights), 3)
    for _ in range(most):
        (now,) = queue.release(now)
        worked[now.flow.identity] += now.cost
    for one, weight in enumerate(weights):
        for other, heavier in enumerate(weights):
            # Within a round of each other: what one can be ahead by is a turn and what it costs.
            ahead = worked[str(one)] / weight - worked[str(other)] / heavier
            assert ahead <= 2 + max(costs), (worked, weights, costs)


def test_a_quiet_identity_is_next_regardless_of_how_many_requests_another_has_waiting() -> None:
    queue = FairQueue(unbounded_queues(), slots=1)
    busy = queue.enqueue(Lane.PEOPLE, "noisy")
    noisy = [queue.enqueue(Lane.PEOPLE, "noisy") for _ in range(500)]
    quiet = queue.enqueue(Lane.PEOPLE, "quiet")
    (first,) = queue.release(busy)
    (second,) = queue.release(first)
    assert quiet in {first, second}
    assert sum(each.admitted for each in noisy) <= 1 + 1


def test_an_important_lane_goes_first_and_other_lanes_keep_their_reserved_slots() -> None:
    limits = unbounded_queues(slots=2, slots_each=2, reserved=1)
    queue = FairQueue(limits, slots=2)
    first = [queue.enqueue(Lane.AGENT, "agent"), queue.enqueue(Lane.AGENT, "agent")]
    bulk = queue.enqueue(Lane.BULK, "user")
    assert bulk.admitted, "one slot is reserved for the lane, even when all shared slots are taken"
    more = [queue.enqueue(Lane.BULK, "user"), queue.enqueue(Lane.AGENT, "agent")]
    assert not queue.release(first[0]), "all shared slots are still held"
    (after,) = queue.release(first[1])
    assert after is more[1], "the important one, though it came last"
    assert not more[0].admitted


def test_one_identity_never_holds_all_slots_of_a_lane() -> None:
    queue = FairQueue(unbounded_queues(slots=4, slots_each=3), slots=8)
    noisy = [queue.enqueue(Lane.BULK, "noisy") for _ in range(10)]
    assert sum(each.admitted for each in noisy) == 3
    assert queue.enqueue(Lane.BULK, "quiet").admitted


def test_a_full_queue_refuses_with_a_retry_time_and_keeps_no_state() -> None:
    queue = FairQueue(dict.fromkeys(Lane, SMALL), SLOTS)
    kept = [queue.enqueue(Lane.PEOPLE, "a") for _ in range(2 + 4)]
    with pytest.raises(TooMany) as caught:
        queue.enqueue(Lane.PEOPLE, "a")
    assert caught.value.facts["seconds"] == 1.0
    assert caught.value.hint
    kept += [queue.enqueue(Lane.PEOPLE, "b") for _ in range(1 + 4)]
    with pytest.raises(TooMany):
        queue.enqueue(Lane.PEOPLE, "c")
    for each in kept:
        queue.release(each)
    assert not queue._queues[Lane.PEOPLE].flows


def test_bodies_of_waiting_requests_are_limited_in_bytes() -> None:
    queue = FairQueue(unbounded_queues(), slots=1)
    queue.enqueue(Lane.PEOPLE, "a")
    for _ in range(16):
        queue.enqueue(Lane.PEOPLE, "a", size_bytes=4 << 20)
    with pytest.raises(TooMany):
        queue.enqueue(Lane.PEOPLE, "a", size_bytes=1)
    assert queue.held_bytes == 64 << 20


@settings(max_examples=30)
@given(slots=st.integers(1, 6))
def test_fewer_slots_slow_a_lane_down_and_the_configured_number_admits_what_waits(slots: int) -> None:
    queue = FairQueue(unbounded_queues(slots=8, slots_each=8, reserved=4), slots=8)
    queue.set_slots(Lane.REPORT, slots)
    asked = [queue.enqueue(Lane.REPORT, str(number % 3)) for number in range(12)]
    assert sum(each.admitted for each in asked) == slots
    freed = queue.set_slots(Lane.REPORT)
    assert sum(each.admitted for each in asked) == 8
    assert len(freed) == 8 - slots
