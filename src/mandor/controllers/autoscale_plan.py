"""Plan for the count of an autoscaled group: the count each measure asks for, then windows, rate limits and bounds.

The arithmetic is that of Kubernetes' HorizontalPodAutoscaler: count = ceil(count * measured / target), no change within
the tolerance, and instances without measurements count against the direction of the change.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Literal

from mandor.lib.quantity import Percent, Seconds
from mandor.model.autoscale import Autoscale, AutoscaleReason, AutoscaleStatus, Reading, ScalePace
from mandor.model.resources import Resources
from mandor.model.usage import GroupUsage

UNUSED, NOTHING = GroupUsage(), Resources()
MISSING_ALL = "no usage of its instances was measured yet"
ANSWERS_MOST = 720
"""Computed counts kept for the stabilisation windows: one every 5 seconds for an hour."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Current measurements of a group."""

    count: int
    """The wanted number of instances."""
    ready: int
    waiting: int = 0
    """Instances that are not ready or not placed yet."""
    usage: GroupUsage = UNUSED
    """Measured usage of the ready instances."""
    request: Resources = NOTHING
    """Mean request of a ready instance."""
    metric: float | None = None
    """Last value of the metric; None: unknown."""
    metric_problem: str = ""


@dataclass(slots=True)
class History:
    """Past counts and steps on a monotonic clock, for windows and rate limits. Kept in memory only: a new leader starts
    with the current count as the only entry, so it never scales down too early."""

    answers: list[tuple[float, int]] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)
    """Time and size of each change of the count."""

    def look(self, seconds: float, now: float) -> list[int]:
        return [count for at, count in self.answers if now - at < seconds]

    def moved(self, seconds: float, now: float, *, up: bool) -> int:
        return sum(abs(by) for at, by in self.steps if now - at < seconds and (by > 0) == up)

    def forget(self, scaling: Autoscale, now: float) -> None:
        longest = max(scaling.growing.window or 0, scaling.shrinking.window or 0)
        self.answers = [each for each in self.answers if now - each[0] < longest][-ANSWERS_MOST:]
        longest = max(scaling.growing.per, scaling.shrinking.per)
        self.steps = [each for each in self.steps if now - each[0] < longest]


@dataclass(frozen=True, slots=True)
class Asked:
    """The count that one measure asks for."""

    reading: Reading
    count: int | None
    """None: unknown, because the measure has no value."""


def plan_count(scaling: Autoscale, seen: Measured, history: History, now: float) -> tuple[int, AutoscaleStatus]:
    """Return the new count and a status that explains it; record both in the history."""
    asked = list(_ask_all(scaling, seen))
    readings = tuple(each.reading for each in asked)
    within = scaling.clamp(seen.count)
    if within != seen.count:
        _stepped(history, within - seen.count, now)
        return within, _status("Scaled", f"the count must be {scaling.min} to {scaling.max}", readings)
    answer, unknown = _most(asked, seen.count)
    if not history.answers:
        history.answers.append((now, seen.count))
    if answer is not None:
        history.answers.append((now, scaling.clamp(answer)))
    history.forget(scaling, now)
    if answer is None:
        return seen.count, _status("NoMetrics", unknown, readings)
    steady = _stabilised(scaling, seen.count, scaling.clamp(answer), history, now)
    count = _limited(scaling, seen.count, steady, history, now)
    if count != seen.count:
        _stepped(history, count - seen.count, now)
    reason, message = _why(scaling, seen, answer, steady, count)
    return count, _status(reason, message or unknown, readings)


def _status(reason: AutoscaleReason, message: str, readings: tuple[Reading, ...]) -> AutoscaleStatus:
    return AutoscaleStatus(reason=reason, message=message, readings=readings)


def _stepped(history: History, by: int, now: float) -> None:
    history.steps.append((now, by))


# The count each measure asks for.


def _ask_all(scaling: Autoscale, seen: Measured) -> Iterable[Asked]:
    if scaling.cpu is not None:
        yield _ask_usage("cpu", scaling.cpu, seen.usage.cpu_milli, seen.request.cpu_milli, scaling, seen)
    if scaling.memory is not None:
        yield _ask_usage("memory", scaling.memory, seen.usage.memory_bytes, seen.request.memory_bytes, scaling, seen)
    if scaling.metric is not None:
        yield _ask_metric(scaling, seen)


def _ask_usage(
    name: Literal["cpu", "memory"], target: Percent, used: int, request: int, scaling: Autoscale, seen: Measured
) -> Asked:
    measured = min(seen.usage.count, seen.ready)
    if request <= 0 or measured <= 0:
        why = f"its tasks request no {name}, so there is no utilisation to compute" if request <= 0 else MISSING_ALL
        return Asked(Reading(name=name, target=float(target), problem=why), None)
    part = used / seen.usage.count / request  # share of the mean request
    reading = Reading(name=name, current=round(100 * part, 1), target=float(target))
    goal = target / 100
    ratio = part / goal
    missing = seen.ready - measured
    if missing or (seen.waiting and ratio > 1):
        return Asked(reading, _with_unknown(seen, ratio, goal, measured, missing, scaling.tolerance))
    return Asked(reading, _scaled(seen.count, measured, ratio, scaling.tolerance))


def _with_unknown(seen: Measured, ratio: float, goal: float, measured: int, missing: int, tolerance: Percent) -> int:
    """Count instances without measurements conservatively: with full usage when scaling down (or the target, if that is
    higher), with none when scaling up. If that would reverse the direction, the count stays unchanged."""
    total = ratio * measured
    if ratio < 1:
        total += missing * max(1.0, goal) / goal
        among = measured + missing
    else:
        among = measured + missing + seen.waiting
    again = total / among
    if (again - 1) * (ratio - 1) <= 0:
        return seen.count
    return _scaled(seen.count, among, again, tolerance)


def _scaled(count: int, among: int, ratio: float, tolerance: Percent) -> int:
    """Return `among * ratio` rounded up; high load never lowers the count, low load never raises it."""
    if _near(ratio, tolerance):
        return count
    return max(count, _up(among * ratio)) if ratio > 1 else min(count, _up(among * ratio))


def _near(ratio: float, tolerance: Percent) -> bool:
    return abs(ratio - 1) <= tolerance / 100 + 1e-9


def _up(amount: float) -> int:
    """Round up, ignoring floating-point noise."""
    return min(ceil(amount - 1e-9), 1_000_000)


def _ask_metric(scaling: Autoscale, seen: Measured) -> Asked:
    metric = scaling.metric
    assert metric is not None
    value = seen.metric
    if value is None or not math.isfinite(value) or value < 0:
        why = seen.metric_problem or (f"invalid value {value:g}" if value is not None else "no value yet")
        return Asked(Reading(name="metric", target=metric.target, problem=why), None)
    if metric.average:
        reading = Reading(name="metric", current=_short(value), target=metric.target)
        return Asked(reading, _scaled(seen.count, max(seen.ready, 1), value / metric.target, scaling.tolerance))
    each = value / seen.count if seen.count else value
    reading = Reading(name="metric", current=_short(each), target=metric.target)
    near = seen.count > 0 and _near(each / metric.target, scaling.tolerance)
    return Asked(reading, seen.count if near else _up(value / metric.target))


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _most(asked: Sequence[Asked], count: int) -> tuple[int | None, str]:
    """Return the highest count asked for, and the problem of an unknown measure; with one unknown, never scale down."""
    known = [each.count for each in asked if each.count is not None]
    unknown = next((f"{each.reading.name}: {each.reading.problem}" for each in asked if each.count is None), "")
    if not known or (unknown and max(known) < count):
        return None, unknown
    return max(known), unknown


# Windows and rate limits.


def _stabilised(scaling: Autoscale, count: int, answer: int, history: History, now: float) -> int:
    """Scale up to the lowest count of the scale-up window, down to the highest count of the scale-down window."""
    least = min([answer, *history.look(scaling.growing.window or 0, now)])
    most = max([answer, *history.look(scaling.shrinking.window or 0, now)])
    return min(max(count, least), most)


def _limited(scaling: Autoscale, count: int, wanted: int, history: History, now: float) -> int:
    if wanted > count:
        pace = scaling.growing
        began = count - history.moved(pace.per, now, up=True)
        return max(count, min(wanted, began + _step(pace, began)))
    if wanted < count:
        pace = scaling.shrinking
        began = count + history.moved(pace.per, now, up=False)
        return min(count, max(wanted, began - _step(pace, began)))
    return count


def _step(pace: ScalePace, count: int) -> int:
    steps = [] if pace.instances is None else [pace.instances]
    if pace.percent is not None:
        steps.append(max(1, ceil(count * pace.percent / 100)))
    return max(steps, default=1_000_000)


def _why(scaling: Autoscale, seen: Measured, answer: int, steady: int, count: int) -> tuple[AutoscaleReason, str]:
    if count != seen.count:
        slower = count != scaling.clamp(answer)
        return (
            "Limited" if slower else "Scaled"
        ), f"{answer} needed, limited to {count} by the scaling rate" if slower else ""
    if scaling.clamp(answer) != seen.count:
        if steady == seen.count:
            pace = scaling.growing if answer > seen.count else scaling.shrinking
            return (
                "Settling",
                f"{scaling.clamp(answer)} needed; waiting for the stabilisation window of {Seconds(pace.window or 0)}",
            )
        return "Limited", f"{answer} needed; waiting because of the scaling rate"
    if answer > scaling.max:
        return "AtMost", f"{answer} needed, limited to the maximum of {scaling.max}"
    if answer < scaling.min:
        return "AtLeast", f"{answer} needed, raised to the minimum of {scaling.min}"
    return "Steady", ""


def differs(before: AutoscaleStatus | None, after: AutoscaleStatus) -> bool:
    """Return whether the status is worth a write: a new reason, or a reading that moved by 5 % of its target."""
    if before is None or (before.reason, before.message, before.last_at) != (
        after.reason,
        after.message,
        after.last_at,
    ):
        return True
    if len(before.readings) != len(after.readings):
        return True
    return any(_moved(old, new) for old, new in zip(before.readings, after.readings, strict=True))


def _moved(old: Reading, new: Reading) -> bool:
    if (old.name, old.target, old.problem) != (new.name, new.target, new.problem):
        return True
    return abs((old.current or 0.0) - (new.current or 0.0)) > new.target / 20
