"""Counts that follow their load: bounds and limits hold whatever is measured, and a steady load comes to rest."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.controllers.autoscale_plan import ANSWERS_MOST, History, Measured, plan_count
from mandor.model.autoscale import Autoscale
from mandor.model.codec import from_plain
from mandor.model.resources import Resources
from mandor.model.usage import GroupUsage

pace = st.fixed_dictionaries(
    {"window": st.sampled_from([0, 10, 60, 300])},
    optional={
        "instances": st.integers(1, 10),
        "percent": st.integers(1, 200),
        "per": st.sampled_from([1, 15, 60, 600]),
    },
)


@st.composite
def scalings(draw: st.DrawFn) -> Autoscale:
    least = draw(st.integers(1, 20))
    fields: dict[str, Any] = {"min": least, "max": draw(st.integers(least, 60)), "up": draw(pace), "down": draw(pace)}
    fields |= draw(st.sampled_from([{"cpu": 50}, {"memory": 80}, {"cpu": 70, "metric": {"query": "q", "target": 10}}]))
    return from_plain(fields | {"tolerance": draw(st.integers(0, 20))}, Autoscale)


@st.composite
def sights(draw: st.DrawFn, count: int) -> Measured:
    ready = draw(st.integers(0, count))
    measured = draw(st.integers(0, ready + 2))
    return Measured(
        count=count,
        ready=ready,
        waiting=draw(st.integers(0, count - ready)),
        usage=GroupUsage(measured, draw(st.integers(0, 10**7)), draw(st.integers(0, 10**12)))
        if measured
        else GroupUsage(),
        request=Resources(draw(st.integers(0, 4000)), draw(st.integers(0, 10**10))),
        metric=draw(st.none() | st.floats(allow_nan=True, allow_infinity=True)),
    )


@pytest.mark.req("S2-47")
@given(st.data(), scalings(), st.integers(0, 80), st.lists(st.floats(0.1, 400), min_size=1, max_size=30))
def test_no_count_leaves_its_bounds_or_moves_faster_than_it_may(
    data: st.DataObject, scaling: Autoscale, count: int, pauses: list[float]
) -> None:
    history, now = History(), 0.0
    counts = [(now, count)]
    for pause in pauses:
        now += pause
        before = count
        count, status = plan_count(scaling, data.draw(sights(count)), history, now)
        assert scaling.min <= count <= scaling.max
        assert status.reason
        assert len(history.answers) <= ANSWERS_MOST + 2
        if scaling.min <= before <= scaling.max:
            counts.append((now, count))
            _check_pace(scaling, counts, now, count)
        else:
            counts = [(now, count)]  # moved into its bounds, which is nobody's load
            history.steps.clear()


def _check_pace(scaling: Autoscale, counts: list[tuple[float, int]], now: float, count: int) -> None:
    """Over any stretch of `per`, no more than the larger of both limits."""
    for pace, sign in ((scaling.growing, 1), (scaling.shrinking, -1)):
        if pace.instances is None and pace.percent is None:
            continue
        recent = [each for at, each in counts if now - at < pace.per]
        steps = [sign * (new - old) for old, new in pairwise(recent)]
        moved = sum(step for step in steps if step > 0)
        most = max(pace.instances or 1, *(-(-each * (pace.percent or 0) // 100) for each in recent), 1)
        assert moved <= most


@given(scalings(), st.integers(1, 60), st.floats(0, 100))
def test_a_steady_load_comes_to_rest_where_it_is_borne_or_at_a_bound(
    scaling: Autoscale, count: int, load: float
) -> None:
    """The load is shared: with more instances each has less of it."""
    history, now = History(), 0.0
    for _ in range(150):
        now += 700.0  # longer than any `per`: however slowly it may move, each time it may by one
        count, _status = plan_count(scaling, _steady(count, load), history, now)
    rest = {plan_count(scaling, _steady(count, load), history, now + 30 * step)[0] for step in range(1, 5)}
    assert rest == {count}
    target = float(scaling.cpu or scaling.memory or 0) / 100
    if scaling.metric is not None:
        target = min(target, 1.0)
    tolerance = float(scaling.tolerance) / 100
    if count < scaling.max:
        assert load / count <= target * (1 + tolerance) + 0.01
    if count > scaling.min and count > 1:
        # One fewer would be too few, or it is within the tolerance.
        assert load / (count - 1) >= target - 0.01 or load / count >= target * (1 - tolerance) - 0.01


def _steady(count: int, load: float) -> Measured:
    used = round(1000 * load / max(count, 1) * count)
    return Measured(
        count=count, ready=count, usage=GroupUsage(count, used, used), request=Resources(1000, 1000), metric=10 * load
    )
