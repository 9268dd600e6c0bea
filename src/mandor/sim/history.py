"""Records of one run: intervals in which instances ran, preemptions, notes, and counts over time."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from msgspec import Struct


class RunInterval(Struct, frozen=True, gc=False):
    """Interval in which an instance ran on a node."""

    workload: str
    instance: str
    node: str
    begin: float
    end: float


class PreemptionRecord(Struct, frozen=True, gc=False):
    at: float
    victim: str
    by: str
    node: str
    depth: int
    """Position in a chain of preemptions: 1 is the first; 2 was preempted by an instance that was preempted itself."""


class TimelineNote(Struct, frozen=True, gc=False):
    """One line of the timeline."""

    at: float
    kind: str
    text: str


@dataclass(slots=True)
class Steps:
    """A number that changes at certain times."""

    times: list[float] = field(default_factory=list)
    values: list[int] = field(default_factory=list)

    def set(self, at: float, value: int) -> None:
        if self.values and self.values[-1] == value:
            return
        if self.times and self.times[-1] == at:
            self.values[-1] = value
            return
        self.times.append(at)
        self.values.append(value)

    def at(self, time: float) -> int:
        place = bisect_right(self.times, time)
        return self.values[place - 1] if place else 0


def seconds_without(running: Steps, wanted: Steps, begin: float, end: float) -> tuple[float, float]:
    """Return the seconds without any running instance and the seconds with fewer than wanted."""
    none = fewer = 0.0
    cuts = sorted({begin, end, *(at for steps in (running, wanted) for at in steps.times if begin < at < end)})
    for left, right in pairwise(cuts):
        has, wants = running.at(left), wanted.at(left)
        if wants and not has:
            none += right - left
        if has < wants:
            fewer += right - left
    return none, fewer


def always(stays: Sequence[RunInterval], begin: float, end: float) -> float | None:
    """Return the first time in which none of the intervals covers; None: they cover everything."""
    at = begin
    for each in sorted(stays, key=lambda one: one.begin):
        if each.begin <= at < each.end:
            at = each.end
    return None if at >= end else at


def together(
    first: Sequence[RunInterval], second: Sequence[RunInterval], windows: Iterable[tuple[float, float]]
) -> float | None:
    """Return the first time at which two instances ran on the same node, within the windows; None: never."""
    found = [
        max(a.begin, b.begin, begin)
        for begin, end in windows
        for a in first
        for b in second
        if a.node == b.node and a.instance != b.instance and max(a.begin, b.begin, begin) < min(a.end, b.end, end)
    ]
    return min(found, default=None)
