"""Who is next under load: lanes by importance, identities by turns, and nothing without a bound."""

import contextlib
from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.api.turn_plan import LIMITS, NO_LIMIT, Lane, LaneLimits, Turn, Turns
from mandor.errors import TooMany

SMALL = LaneLimits(seats=3, kept=1, seats_each=2, waiting=8, waiting_each=4)
ALL_SMALL = dict.fromkeys(Lane, SMALL) | {Lane.HEARTBEAT: LIMITS[Lane.HEARTBEAT]}
SEATS = 5


def plenty(**changed: int) -> dict[Lane, LaneLimits]:
    """One lane that matters, with queues nobody fills."""
    fields = {"seats": 1, "kept": 1, "seats_each": 1, "waiting": NO_LIMIT, "waiting_each": NO_LIMIT} | changed
    return {lane: LaneLimits(**fields) for lane in Lane}


asks = st.tuples(st.just("ask"), st.sampled_from(list(Lane)), st.sampled_from("abcd"), st.integers(1, 4))
leaves = st.tuples(st.just("leave"), st.integers(0, 1000))
limits = st.tuples(st.just("limit"), st.sampled_from([Lane.REPORT, Lane.BULK]), st.sampled_from([None, 1, 2]))


@pytest.mark.req("S0-19")
@given(st.lists(st.one_of(asks, asks, leaves, limits), max_size=120))
def test_whatever_comes_queues_are_bounded_and_no_seat_stays_empty_that_somebody_may_have(steps: list) -> None:  # type: ignore[type-arg]
    turns = Turns(ALL_SMALL, SEATS)
    live: list[Turn] = []
    for step in steps:
        if step[0] == "ask":
            with contextlib.suppress(TooMany):
                live.append(turns.ask(step[1], step[2], cost=step[3], size_bytes=7))
        elif step[0] == "leave" and live:
            turn = live.pop(step[1] % len(live))
            for each in turns.leave(turn):
                assert each.seated
                assert not each.over
        elif step[0] == "limit":
            turns.limit(step[1], step[2])
        check(turns, live)
    while live:
        turns.leave(live.pop(0))
        check(turns, live)
    assert all(turns.waiting(lane) == turns.seated(lane) == 0 for lane in Lane)
    assert turns.held_bytes == 0


def check(turns: Turns, live: list[Turn]) -> None:
    seated = Counter((each.lane, each.flow.identity) for each in live if each.seated)
    by_lane = Counter(each.lane for each in live if each.seated)
    waiting = Counter((each.lane, each.flow.identity) for each in live if not each.seated)
    waiting_by_lane = Counter(each.lane for each in live if not each.seated)
    assert turns.held_bytes == 7 * sum(waiting.values())
    for lane in Lane:
        assert turns.seated(lane) == by_lane[lane]
        assert turns.waiting(lane) == waiting_by_lane[lane] <= SMALL.waiting
        if lane is Lane.HEARTBEAT:
            assert not turns.waiting(lane), "a heartbeat never waits"
            continue
        assert by_lane[lane] <= SMALL.seats
    for (lane, identity), count in waiting.items():
        assert count <= SMALL.waiting_each
        # Work-conserving: who waits has its own share, or its lane has all seats it may have.
        line = turns._lines[lane]
        full = by_lane[lane] >= line.limits.seats
        taken = sum(by_lane.values()) >= SEATS and by_lane[lane] >= line.limits.kept
        assert full or taken or seated[lane, identity] >= line.limits.seats_each


@given(
    weights=st.lists(st.integers(1, 5), min_size=2, max_size=6),
    costs=st.lists(st.integers(1, 3), min_size=6, max_size=6),
)
def test_identities_that_always_wait_get_work_in_the_proportion_of_their_weights(
    weights: list[int], costs: list[int]
) -> None:
    turns = Turns(plenty(), seats=1)
    begun = turns.ask(Lane.BULK, "first")
    waiting: deque[Turn] = deque()
    rounds = 12
    for number, weight in enumerate(weights):
        for _ in range(rounds * min(len(weights), 3)):  # more than it can get
            waiting.append(turns.ask(Lane.BULK, str(number), weight=weight, cost=costs[number]))
    worked: Counter[str] = Counter()
    now = begun
    most = rounds * min(len(weights), 3)
    for _ in range(most):
        (now,) = turns.leave(now)
        worked[now.flow.identity] += now.cost
    for one, weight in enumerate(weights):
        for other, heavier in enumerate(weights):
            # Within a round of each other: what one can be ahead by is a turn and what it costs.
            ahead = worked[str(one)] / weight - worked[str(other)] / heavier
            assert ahead <= 2 + max(costs), (worked, weights, costs)


def test_a_quiet_identity_is_next_however_many_requests_of_a_noisy_one_wait() -> None:
    turns = Turns(plenty(), seats=1)
    busy = turns.ask(Lane.PEOPLE, "noisy")
    noisy = [turns.ask(Lane.PEOPLE, "noisy") for _ in range(500)]
    quiet = turns.ask(Lane.PEOPLE, "quiet")
    (first,) = turns.leave(busy)
    (second,) = turns.leave(first)
    assert quiet in {first, second}
    assert sum(each.seated for each in noisy) <= 1 + 1


def test_an_important_lane_goes_first_and_the_others_keep_what_is_theirs() -> None:
    limits = plenty(seats=2, seats_each=2, kept=1)
    turns = Turns(limits, seats=2)
    first = [turns.ask(Lane.AGENT, "agent"), turns.ask(Lane.AGENT, "agent")]
    bulk = turns.ask(Lane.BULK, "user")
    assert bulk.seated, "one seat is the lane's own, even when all are taken"
    more = [turns.ask(Lane.BULK, "user"), turns.ask(Lane.AGENT, "agent")]
    assert not turns.leave(first[0]), "the others hold as many as there are"
    (after,) = turns.leave(first[1])
    assert after is more[1], "the important one, though it came last"
    assert not more[0].seated


def test_one_identity_never_holds_all_seats_of_a_lane() -> None:
    turns = Turns(plenty(seats=4, seats_each=3), seats=8)
    noisy = [turns.ask(Lane.BULK, "noisy") for _ in range(10)]
    assert sum(each.seated for each in noisy) == 3
    assert turns.ask(Lane.BULK, "quiet").seated


def test_who_finds_the_queue_full_is_told_when_to_come_again_and_leaves_nothing_behind() -> None:
    turns = Turns(dict.fromkeys(Lane, SMALL), SEATS)
    kept = [turns.ask(Lane.PEOPLE, "a") for _ in range(2 + 4)]
    with pytest.raises(TooMany) as caught:
        turns.ask(Lane.PEOPLE, "a")
    assert caught.value.facts["seconds"] == 1.0
    assert caught.value.hint
    kept += [turns.ask(Lane.PEOPLE, "b") for _ in range(1 + 4)]
    with pytest.raises(TooMany):
        turns.ask(Lane.PEOPLE, "c")
    for each in kept:
        turns.leave(each)
    assert not turns._lines[Lane.PEOPLE].flows


def test_bodies_that_wait_are_bounded_in_bytes() -> None:
    turns = Turns(plenty(), seats=1)
    turns.ask(Lane.PEOPLE, "a")
    for _ in range(16):
        turns.ask(Lane.PEOPLE, "a", size_bytes=4 << 20)
    with pytest.raises(TooMany):
        turns.ask(Lane.PEOPLE, "a", size_bytes=1)
    assert turns.held_bytes == 64 << 20


@settings(max_examples=30)
@given(seats=st.integers(1, 6))
def test_a_lane_that_is_narrowed_trails_and_catches_up_when_it_is_widened(seats: int) -> None:
    turns = Turns(plenty(seats=8, seats_each=8, kept=4), seats=8)
    turns.limit(Lane.REPORT, seats)
    asked = [turns.ask(Lane.REPORT, str(number % 3)) for number in range(12)]
    assert sum(each.seated for each in asked) == seats
    freed = turns.limit(Lane.REPORT)
    assert sum(each.seated for each in asked) == 8
    assert len(freed) == 8 - seats
