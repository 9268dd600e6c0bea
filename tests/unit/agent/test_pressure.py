"""Thresholds of node pressure, and the choice of the victim."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.agent.pressure import (
    CALM_SECONDS,
    DEFAULT_THRESHOLDS,
    EvictionCandidate,
    Need,
    Pressure,
    Reading,
    Threshold,
    select_victims,
)

SOME = {"memory": Threshold(0.10, 0.05, 60.0), "disk": Threshold(0.20, 0.10, 30.0)}


def left(signal: str, percent: float) -> Reading:
    return Reading(signal, round(percent * 100), 10_000)


@pytest.mark.req("S3-7")
def test_a_soft_threshold_creates_a_need_after_its_grace_and_a_hard_one_at_once() -> None:
    pressure = Pressure(SOME)
    pressure.update([left("memory", 9)], 0.0)
    assert pressure.shown == ("memory",)
    assert pressure.need is None
    pressure.update([left("memory", 9)], 60.0)
    assert pressure.need == Need("memory", False, 0.09, 100)
    pressure.update([left("memory", 4)], 61.0)
    assert pressure.need == Need("memory", True, 0.04, 600)
    assert str(pressure.need) == "4.0% of its memory is left"


@pytest.mark.req("S3-12")
@pytest.mark.parametrize("signal", ["memory", "disk", "inodes"])
def test_all_resources_follow_the_same_rules(signal: str) -> None:
    pressure, threshold = Pressure(DEFAULT_THRESHOLDS), DEFAULT_THRESHOLDS[signal]
    soft, hard = 100 * threshold.soft - 1, 100 * threshold.hard - 1
    pressure.update([left(signal, soft)], 0.0)
    assert (pressure.shown, pressure.need) == ((signal,), None)
    pressure.update([left(signal, soft)], threshold.grace_seconds)
    assert pressure.need is not None
    assert (pressure.need.signal, pressure.need.hard) == (signal, False)
    pressure.update([left(signal, hard)], threshold.grace_seconds + 1)
    assert pressure.need is not None
    assert pressure.need.hard


def test_a_shortage_that_ends_within_the_grace_creates_no_need_and_is_shown_for_a_while() -> None:
    pressure = Pressure(SOME)
    pressure.update([left("memory", 9)], 0.0)
    pressure.update([left("memory", 11)], 30.0)
    assert pressure.need is None
    assert pressure.shown == ("memory",)
    pressure.update([left("memory", 9)], 50.0)
    pressure.update([left("memory", 9)], 100.0)
    assert pressure.need is None, "the grace began anew"
    pressure.update([left("memory", 50)], 101.0)
    pressure.update([left("memory", 50)], 100.0 + CALM_SECONDS)
    assert not pressure.shown


def test_the_lowest_reading_and_the_most_urgent_need_count() -> None:
    pressure = Pressure(SOME)
    pressure.update([left("memory", 90), left("memory", 1), left("disk", 3)], 0.0)
    assert pressure.need == Need("memory", True, 0.01, 900)


def test_resources_without_threshold_or_total_are_ignored() -> None:
    pressure = Pressure({"inodes": SOME["disk"]})
    pressure.update([left("disk", 0), Reading("inodes", 0, 0)], 0.0)
    assert pressure.shown == ()


@pytest.mark.parametrize(
    ("text", "words"), [("10%", "write SOFT:HARD"), ("5%:10%", "hard ≤ soft"), ("a:b", "write SOFT")]
)
def test_an_invalid_threshold_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Threshold.parse(text)


def test_thresholds_are_written_as_shares_and_a_time() -> None:
    assert Threshold.parse("10%:5%:30s") == Threshold(0.10, 0.05, 30.0)
    assert Threshold.parse("10%:5%") == Threshold(0.10, 0.05, 60.0)
    assert Threshold.parse("off") is None


def goes(*candidates: EvictionCandidate, missing: int = 1) -> list[str]:
    return [each.uid for each in select_victims(candidates, missing)]


@pytest.mark.req("S3-7", "S3-8", "S3-48")
def test_victims_are_ordered_by_excess_over_request_priority_and_size() -> None:
    modest = EvictionCandidate("modest", priority=-5, used=90, requested=100)
    greedy = EvictionCandidate("greedy", priority=100, used=300, requested=100)
    lowly = EvictionCandidate("lowly", priority=0, used=150, requested=100)
    larger = EvictionCandidate("larger", priority=0, used=200, requested=100)
    assert goes(modest, greedy) == ["greedy"], "an instance that keeps within its request goes last"
    assert goes(greedy, lowly) == ["lowly"]
    assert goes(lowly, larger) == ["larger"]
    assert goes(modest) == ["modest"], "the platform falls before the host"
    assert goes() == []
    assert goes(modest, greedy, lowly, larger, missing=10_000) == ["larger", "lowly", "greedy", "modest"]


@pytest.mark.req("S3-7", "S3-8")
def test_an_instance_whose_eviction_does_not_help_stays() -> None:
    small = EvictionCandidate("small", priority=0, used=30, requested=10, movable=False)
    large = EvictionCandidate("large", priority=5, used=2000, requested=3000)
    assert goes(small, large, missing=100) == ["large"], "the small one would be evicted in vain"
    assert goes(small, large, missing=20) == ["small"]
    assert goes(small, large, missing=2010) == ["small", "large"]


def test_of_equal_instances_one_that_can_run_elsewhere_goes_and_a_daemon_stays() -> None:
    daemon = EvictionCandidate("daemon", priority=0, used=90, requested=10, movable=False)
    service = EvictionCandidate("service", priority=0, used=50, requested=10)
    assert goes(daemon, service) == ["service"]
    important = EvictionCandidate("important", priority=1, used=50, requested=10)
    assert goes(daemon, important) == ["daemon"], "the priority counts first"


candidates_drawn = st.lists(
    st.builds(
        EvictionCandidate,
        st.uuids().map(str),
        st.integers(-9, 9),
        st.integers(0, 99),
        st.integers(0, 99),
        st.booleans(),
    )
)


@given(candidates_drawn, st.integers(0, 400))
def test_the_victims_end_the_pressure_if_that_is_possible_and_none_of_them_is_superfluous(
    candidates: list[EvictionCandidate], missing: int
) -> None:
    found = select_victims(candidates, missing)
    freed = sum(each.used for each in found)
    assert bool(found) == bool(candidates)
    if sum(each.used for each in candidates) >= missing:
        assert freed >= missing
    if len(found) > 1:
        assert all(freed - each.used < missing for each in found)


@given(candidates_drawn, st.integers(1, 400))
def test_an_instance_within_its_request_goes_only_if_the_others_do_not_end_the_pressure(
    candidates: list[EvictionCandidate], missing: int
) -> None:
    excessive = sum(each.used for each in candidates if each.used > each.requested)
    if excessive >= missing:
        assert all(each.used > each.requested for each in select_victims(candidates, missing))
