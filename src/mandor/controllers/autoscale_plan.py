"""Plan for the count of a group that follows its load: what each measure asks for, then windows, limits and bounds.

The arithmetic is that of Kubernetes' HorizontalPodAutoscaler: count = ceil(count * measured / target), nothing within
the tolerance, those who cannot be measured counted against the direction of the change.
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
MISSING_ALL = "nothing of what its instances use has been measured yet"
ANSWERS_MOST = 720
"""So many answers are kept for the windows: one each 5 seconds for an hour."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a group now."""

    count: int
    """So many are wanted."""
    ready: int
    waiting: int = 0
    """So many are not ready, or have no place yet."""
    usage: GroupUsage = UNUSED
    """Of those that are ready, as far as somebody has measured it."""
    request: Resources = NOTHING
    """What one of them asks for, on average."""
    metric: float | None = None
    """What was answered."""
    metric_problem: str = ""


@dataclass(slots=True)
class History:
    """What the windows and the limits look back on, on a monotonic clock. Kept in memory: a successor begins with the
    count it finds as the only answer, and so takes nothing away too early."""

    answers: list[tuple[float, int]] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)
    """When the count was changed, and by how many."""

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
    """What one measure asks for."""

    reading: Reading
    count: int | None
    """None: it is not known."""


def plan_count(scaling: Autoscale, seen: Measured, history: History, now: float) -> tuple[int, AutoscaleStatus]:
    """The count that is wanted from now on, and why; the history takes note of it."""
    asked = list(_ask_all(scaling, seen))
    readings = tuple(each.reading for each in asked)
    within = scaling.clamp(seen.count)
    if within != seen.count:
        _stepped(history, within - seen.count, now)
        return within, _status("Scaled", f"{scaling.min} to {scaling.max} are allowed", readings)
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


# What each measure asks for.


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
        why = f"its tasks ask for no {name}: there is nothing to compare with" if request <= 0 else MISSING_ALL
        return Asked(Reading(name=name, target=float(target), problem=why), None)
    part = used / seen.usage.count / request  # of what one asks for
    reading = Reading(name=name, current=round(100 * part, 1), target=float(target))
    goal = target / 100
    ratio = part / goal
    missing = seen.ready - measured
    if missing or (seen.waiting and ratio > 1):
        return Asked(reading, _with_unknown(seen, ratio, goal, measured, missing, scaling.tolerance))
    return Asked(reading, _scaled(seen.count, measured, ratio, scaling.tolerance))


def _with_unknown(seen: Measured, ratio: float, goal: float, measured: int, missing: int, tolerance: Percent) -> int:
    """Against a shrinking count the unknown use all they ask for (or the target, if that is more), against a growing
    one they use nothing; and what would turn the direction round is left alone."""
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
    """Of those that it is about; never fewer because of too much load, nor more because of too little."""
    if _near(ratio, tolerance):
        return count
    return max(count, _up(among * ratio)) if ratio > 1 else min(count, _up(among * ratio))


def _near(ratio: float, tolerance: Percent) -> bool:
    return abs(ratio - 1) <= tolerance / 100 + 1e-9


def _up(amount: float) -> int:
    """A rounding error is no instance."""
    return min(ceil(amount - 1e-9), 1_000_000)


def _ask_metric(scaling: Autoscale, seen: Measured) -> Asked:
    metric = scaling.metric
    assert metric is not None
    value = seen.metric
    if value is None or not math.isfinite(value) or value < 0:
        why = seen.metric_problem or (f"it was answered with {value:g}" if value is not None else "it is not known yet")
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
    """What the measure says that asks for most. While one of them is unknown, nothing is taken away."""
    known = [each.count for each in asked if each.count is not None]
    unknown = next((f"{each.reading.name}: {each.reading.problem}" for each in asked if each.count is None), "")
    if not known or (unknown and max(known) < count):
        return None, unknown
    return max(known), unknown


# How fast.


def _stabilised(scaling: Autoscale, count: int, answer: int, history: History, now: float) -> int:
    """Up to the least that was asked for within the window of growing, down to the most within that of shrinking."""
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
        ), f"{answer} are needed, {count} is as fast as it may" if slower else ""
    if scaling.clamp(answer) != seen.count:
        if steady == seen.count:
            pace = scaling.growing if answer > seen.count else scaling.shrinking
            return "Settling", f"{scaling.clamp(answer)} would do; it waits {Seconds(pace.window or 0)} to be sure"
        return "Limited", f"{answer} are needed; it has grown or shrunk as fast as it may"
    if answer > scaling.max:
        return "AtMost", f"{answer} are needed, and at most {scaling.max} are allowed"
    if answer < scaling.min:
        return "AtLeast", f"{answer} would do, and at least {scaling.min} are wanted"
    return "Steady", ""


def told_apart(before: AutoscaleStatus | None, after: AutoscaleStatus) -> bool:
    """Whether it is worth a write: something else is so, or a measure has moved by a twentieth of its target."""
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
