"""Thresholds for memory, disk and inodes of the node, and the choice of the instances to evict: pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from mandor.lib.quantity import Seconds

CALM_SECONDS = 60.0
"""Seconds without shortage after which the node is no longer reported under pressure."""
GRACE_SECONDS = 60.0


class Reading(NamedTuple):
    """A measurement of one resource of the machine."""

    signal: str
    available: int
    total: int

    @property
    def share(self) -> float:
        """The available share, from 0 to 1."""
        return self.available / self.total if self.total > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Threshold:
    """Shares of a resource that must stay available."""

    soft: float
    """Below it the node is under pressure; after `grace_seconds` an instance is evicted."""
    hard: float
    """Below it an instance is evicted at once, without its grace period."""
    grace_seconds: float = GRACE_SECONDS

    @classmethod
    def parse(cls, text: str) -> "Threshold | None":
        """Parse `10%:5%:60s` (the last part is optional) or `off`; raise `ValueError` for anything else."""
        if text == "off":
            return None
        parts = text.split(":")
        try:
            soft, hard = (_share(part) for part in parts[:2])
            grace = float(Seconds.parse(parts[2])) if len(parts) == 3 else GRACE_SECONDS
        except ValueError:
            raise ValueError(
                f"{text!r} is not a threshold; write SOFT:HARD or SOFT:HARD:GRACE, as 10%:5%:60s"
            ) from None
        if len(parts) > 3 or not 0 <= hard <= soft < 1:
            raise ValueError(f"{text!r} is not a threshold: 0% ≤ hard ≤ soft < 100% is required")
        return cls(soft, hard, grace)


def _share(text: str) -> float:
    if not text.endswith("%"):
        raise ValueError(text)
    return float(text[:-1]) / 100


DEFAULT_THRESHOLDS: Mapping[str, Threshold] = {
    "memory": Threshold(soft=0.06, hard=0.03),
    "disk": Threshold(soft=0.10, hard=0.05, grace_seconds=120.0),
    "inodes": Threshold(soft=0.06, hard=0.03, grace_seconds=120.0),
}


class Need(NamedTuple):
    """A resource of which something must be reclaimed now."""

    signal: str
    hard: bool
    share: float
    missing: int = 0
    """Amount that must become available to reach the soft threshold."""

    def __str__(self) -> str:
        return f"{self.share:.1%} of its {self.signal} {'are' if self.signal == 'inodes' else 'is'} left"


class Pressure:
    """Tracks since when each resource has been short, and since when it has been sufficient again."""

    def __init__(self, thresholds: Mapping[str, Threshold]) -> None:
        self._thresholds = thresholds
        self._short_since: dict[str, float] = {}
        self._short_last: dict[str, float] = {}
        self._least: dict[str, float] = {}
        self._missing: dict[str, int] = {}
        self._now = 0.0

    def update(self, readings: Iterable[Reading], now: float) -> None:
        """Take new readings; of several readings of one signal the lowest share counts."""
        self._now = now
        self._least, self._missing = {}, {}
        for each in readings:
            self._least[each.signal] = min(each.share, self._least.get(each.signal, 1.0))
            if threshold := self._thresholds.get(each.signal):
                missing = ceil(each.total * threshold.soft) - each.available
                self._missing[each.signal] = max(missing, self._missing.get(each.signal, 0))
        for signal, share in self._least.items():
            threshold = self._thresholds.get(signal)
            if threshold is not None and share < threshold.soft:
                self._short_since.setdefault(signal, now)
                self._short_last[signal] = now
            else:
                self._short_since.pop(signal, None)

    @property
    def shown(self) -> tuple[str, ...]:
        """The resources that the node is short of, or was within the last `CALM_SECONDS`."""
        return tuple(sorted(each for each, last in self._short_last.items() if self._now - last < CALM_SECONDS))

    @property
    def short(self) -> tuple[str, ...]:
        """The resources that are below their soft threshold now."""
        return tuple(sorted(self._short_since))

    @property
    def need(self) -> Need | None:
        """The most urgent need; None: nothing has to be reclaimed."""
        found = [need for signal in self._short_since if (need := self._need(signal)) is not None]
        return min(found, key=lambda each: (not each.hard, each.share), default=None)

    def _need(self, signal: str) -> Need | None:
        threshold, share, missing = self._thresholds[signal], self._least[signal], self._missing[signal]
        if share < threshold.hard:
            return Need(signal, True, share, missing)
        if self._now - self._short_since[signal] >= threshold.grace_seconds:
            return Need(signal, False, share, missing)
        return None


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """An instance that can be evicted."""

    uid: str
    priority: int
    used: int
    requested: int
    """Requested amount of the resource."""
    movable: bool = True
    """Whether its replacement may run on another node; false for daemons."""


def select_victims(candidates: Iterable[EvictionCandidate], missing: int) -> list[EvictionCandidate]:
    """Choose the instances to evict, the first one first, so that `missing` becomes available.

    The order is: instances that use more than they request, then lower priorities, then instances that can run on
    another node, then the largest use beyond the request. Instances whose eviction is not needed to reach `missing`
    are left out, the last in the order first. If all instances together use less, all are returned. Instances that use
    none of the resource are left out, unless no use is known.
    """
    everything = list(candidates)
    using = sorted([each for each in everything if each.used > 0] or everything, key=_order)
    chosen: list[EvictionCandidate] = []
    freed = 0
    for each in using:
        if chosen and freed >= missing:
            break
        chosen.append(each)
        freed += each.used
    for each in reversed(chosen):
        if len(chosen) > 1 and freed - each.used >= missing:
            chosen = [other for other in chosen if other is not each]
            freed -= each.used
    return chosen


def _order(each: EvictionCandidate) -> tuple[bool, int, bool, int]:
    return each.used <= each.requested, each.priority, not each.movable, each.requested - each.used
