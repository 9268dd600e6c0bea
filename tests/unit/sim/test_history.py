"""Counting over time, against the same by looking at every second."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mandor.sim.history import RunInterval, Steps, always, seconds_without, together

times = st.integers(0, 60)
steps = st.lists(st.tuples(times, st.integers(0, 3)), max_size=6)
stays = st.lists(
    st.tuples(times, times, st.sampled_from(["n1", "n2"])).map(
        lambda each: RunInterval("w", f"w-{each[0]}", each[2], min(each[:2]), max(each[:2]))
    ),
    max_size=5,
)


def made(changes: list[tuple[int, int]]) -> Steps:
    found = Steps()
    for at, value in sorted(changes, key=lambda each: each[0]):
        found.set(at, value)
    return found


@given(steps, steps)
def test_downtime_is_what_counting_every_second_gives(
    running: list[tuple[int, int]], wanted: list[tuple[int, int]]
) -> None:
    has, wants = made(running), made(wanted)
    seconds = range(10, 50)
    none = sum(1 for at in seconds if wants.at(at) and not has.at(at))
    fewer = sum(1 for at in seconds if has.at(at) < wants.at(at))
    assert seconds_without(has, wants, 10, 50) == (none, fewer)


@given(stays)
def test_a_gap_is_found_where_no_stay_lasts(given_stays: list[RunInterval]) -> None:
    gaps = [at for at in range(10, 50) if not any(each.begin <= at < each.end for each in given_stays)]
    assert always(given_stays, 10, 50) == (gaps[0] if gaps else None)


@given(stays, stays)
def test_two_are_together_when_some_second_has_both_on_one_node(
    first: list[RunInterval], second: list[RunInterval]
) -> None:
    second = [RunInterval("v", f"v-{number}", each.node, each.begin, each.end) for number, each in enumerate(second)]
    shared = [
        at
        for at in range(10, 50)
        for a in first
        for b in second
        if a.node == b.node and a.begin <= at < a.end and b.begin <= at < b.end
    ]
    assert together(first, second, [(10, 50)]) == (min(shared) if shared else None)
