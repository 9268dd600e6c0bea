"""Counts of autoscaled groups, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.controllers.autoscale_plan import MISSING_ALL, History, Measured, differs, plan_count
from mandor.model.autoscale import Autoscale, AutoscaleStatus
from mandor.model.codec import from_plain, to_plain
from mandor.model.resources import Resources
from mandor.model.usage import GroupUsage

GI = 1024**3
REQUEST = Resources(1000, GI)


def autoscale(**fields: Any) -> Autoscale:
    return from_plain({"min": 1, "max": 20, "down": {"window": 0}, "up": {"instances": 1000}} | fields, Autoscale)


def used(count: int, *, cpu: float = 0.0, memory: float = 0.0) -> GroupUsage:
    """Usage of `count` instances, each with this share of its request."""
    return GroupUsage(count, round(count * cpu * 1000), round(count * memory * GI))


def count_of(scaling: Autoscale, history: History | None = None, now: float = 0.0, **seen: Any) -> int:
    return decide(scaling, history, now, **seen)[0]


def decide(
    scaling: Autoscale, history: History | None = None, now: float = 0.0, **seen: Any
) -> tuple[int, AutoscaleStatus]:
    measured = Measured(**({"request": REQUEST, "ready": seen["count"]} | seen))
    return plan_count(scaling, measured, history if history is not None else History(), now)


@pytest.mark.req("S2-47")
@pytest.mark.parametrize(
    ("part", "count", "wanted"),
    [(0.7, 4, 4), (0.76, 4, 4), (0.64, 4, 4), (0.8, 4, 5), (1.4, 4, 8), (0.35, 4, 2), (0.01, 4, 1), (9.0, 4, 20)],
)
def test_the_count_is_what_brings_the_average_to_the_target(part: float, count: int, wanted: int) -> None:
    assert count_of(autoscale(cpu="70%"), count=count, usage=used(count, cpu=part)) == wanted


def test_a_group_without_a_request_and_one_without_readings_have_different_problems() -> None:
    def problem(request: Resources) -> str:
        _, status = decide(autoscale(cpu="70%"), count=1, usage=GroupUsage(0, 0, 0), request=request)
        (reading,) = status.readings
        return reading.problem

    assert problem(Resources(0, GI)) == "its tasks request no cpu, so there is no utilisation to compute"
    assert problem(Resources(1, GI)) == MISSING_ALL


@pytest.mark.req("S2-47")
def test_the_measure_with_the_highest_count_decides() -> None:
    scaling = autoscale(cpu="50%", memory="50%", metric={"query": "q", "target": 100})
    usage = used(4, cpu=0.25, memory=0.75)
    assert count_of(scaling, count=4, usage=usage, metric=100.0) == 6
    assert count_of(scaling, count=4, usage=usage, metric=1150.0) == 12


def test_a_total_is_shared_by_all_and_an_average_is_not() -> None:
    total = autoscale(metric={"query": "q", "target": 100})
    assert count_of(total, count=3, metric=650.0) == 7
    assert count_of(total, count=3, metric=310.0) == 3  # within the tolerance
    average = autoscale(metric={"query": "q", "target": 0.5, "average": True})
    assert count_of(average, count=3, metric=1.0) == 6


def test_a_total_metric_scales_from_zero_and_to_zero() -> None:
    scaling = autoscale(min=0, metric={"query": "q", "target": 10})
    assert count_of(scaling, count=0, metric=25.0) == 3
    assert count_of(scaling, count=3, metric=0.0) == 0


def test_instances_without_measurements_count_against_both_directions() -> None:
    scaling = autoscale(cpu="50%")
    # Two of four use nothing: alone they would ask for one. The others may use all they ask for.
    assert count_of(scaling, count=4, usage=used(2)) == 4
    # Two of four use twice the target: the others may use nothing.
    assert count_of(scaling, count=4, usage=used(2, cpu=1.0)) == 4
    assert count_of(scaling, count=4, usage=used(2, cpu=2.0)) == 8


def test_instances_that_are_not_ready_count_as_idle_when_scaling_up() -> None:
    scaling = autoscale(cpu="50%")
    assert count_of(scaling, count=4, ready=2, waiting=2, usage=used(2, cpu=1.0)) == 4
    assert count_of(scaling, count=4, ready=2, waiting=2, usage=used(2, cpu=1.5)) == 6


def test_an_unknown_measure_prevents_scaling_down() -> None:
    scaling = autoscale(cpu="50%", metric={"query": "q", "target": 10})
    count, status = decide(scaling, count=4, usage=used(4, cpu=0.1), metric_problem="nobody answers")
    assert (count, status.reason) == (4, "NoMetrics")
    assert "nobody answers" in status.message
    assert count_of(scaling, count=4, usage=used(4, cpu=1.0), metric_problem="nobody answers") == 8


@pytest.mark.parametrize("answer", [float("nan"), float("inf"), -1.0])
def test_an_invalid_metric_value_is_unknown(answer: float) -> None:
    count, status = decide(autoscale(metric={"query": "q", "target": 10}), count=4, metric=answer)
    assert (count, status.reason) == (4, "NoMetrics")


def test_a_count_outside_its_bounds_is_moved_there_at_once_without_any_measure() -> None:
    assert count_of(autoscale(min=3, cpu="50%"), count=1) == 3
    assert count_of(autoscale(max=5, cpu="50%"), count=9) == 5


def test_scaling_down_stops_at_the_highest_count_of_the_window() -> None:
    scaling, history = autoscale(cpu="50%", down={"window": "5m"}), History()
    assert count_of(scaling, history, 0, count=8, usage=used(8, cpu=0.5)) == 8
    count, status = decide(scaling, history, 100, count=8, usage=used(8, cpu=0.1))
    assert (count, status.reason) == (8, "Settling")
    assert count_of(scaling, history, 299, count=8, usage=used(8, cpu=0.25)) == 8
    assert count_of(scaling, history, 301, count=8, usage=used(8, cpu=0.1)) == 4
    assert count_of(scaling, history, 700, count=4, usage=used(4, cpu=0.2)) == 2


def test_a_short_spike_does_not_scale_up_within_the_window() -> None:
    scaling, history = autoscale(cpu="50%", up={"window": "1m"}), History()
    assert count_of(scaling, history, 0, count=2, usage=used(2, cpu=0.5)) == 2
    assert count_of(scaling, history, 10, count=2, usage=used(2, cpu=2.0)) == 2
    assert count_of(scaling, history, 40, count=2, usage=used(2, cpu=1.0)) == 2
    assert count_of(scaling, history, 65, count=2, usage=used(2, cpu=2.0)) == 4


def test_scaling_up_uses_the_larger_of_both_rate_limits() -> None:
    scaling, history = autoscale(cpu="50%", max=100, up={"instances": 2, "percent": "50%", "per": "1m"}), History()
    count, status = decide(scaling, history, 0, count=2, usage=used(2, cpu=9.0))
    assert (count, status.reason) == (4, "Limited")
    count, status = decide(scaling, history, 10, count=4, usage=used(4, cpu=9.0))
    assert (count, status.reason) == (4, "Limited")
    assert count_of(scaling, history, 61, count=4, usage=used(4, cpu=9.0)) == 6
    assert count_of(scaling, History(), 0, count=20, usage=used(20, cpu=9.0)) == 30


def test_a_rate_limit_keeps_the_default_for_fields_that_are_not_set() -> None:
    scaling = autoscale(cpu="50%", up={"window": "1m"}, down={"percent": "50%"})
    growing, shrinking = to_plain(scaling.growing), to_plain(scaling.shrinking)
    assert growing == {"window": "1m", "instances": 4, "percent": "100%", "per": "15s"}
    assert shrinking == {"window": "5m", "percent": "50%"}


def test_scaling_down_respects_the_rate_limit() -> None:
    scaling, history = autoscale(cpu="50%", down={"window": 0, "percent": "10%", "per": "1m"}), History()
    assert count_of(scaling, history, 0, count=20, usage=used(20)) == 18
    assert count_of(scaling, history, 30, count=18, usage=used(18)) == 18
    assert count_of(scaling, history, 61, count=18, usage=used(18)) == 16


def test_at_a_bound_the_message_names_the_needed_count() -> None:
    _, most = decide(autoscale(max=4, cpu="50%"), count=4, usage=used(4, cpu=1.0))
    assert (most.reason, most.message) == ("AtMost", "8 needed, limited to the maximum of 4")
    _, least = decide(autoscale(min=4, cpu="50%"), count=4, usage=used(4, cpu=0.1))
    assert least.reason == "AtLeast"


def test_without_a_request_the_utilisation_is_unknown() -> None:
    count, status = decide(autoscale(memory="50%"), count=2, usage=used(2, memory=1.0), request=Resources(1000, 0))
    assert (count, status.reason) == (2, "NoMetrics")
    assert "request no memory" in status.message


def test_a_measure_that_hardly_moves_is_not_worth_a_write() -> None:
    scaling = autoscale(cpu="70%")
    _, before = decide(scaling, count=4, usage=used(4, cpu=0.70))
    _, little = decide(scaling, count=4, usage=used(4, cpu=0.72))
    _, more = decide(scaling, count=4, usage=used(4, cpu=0.75))
    assert not differs(before, little)
    assert differs(before, more)
    assert differs(None, before)
