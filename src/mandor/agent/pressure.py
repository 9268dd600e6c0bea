"""When this machine is short of memory, disk or inodes, and what that calls for: pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mandor.lib.quantity import Seconds

CALM_SECONDS = 60.0
"""So long there must be enough again before the node says so: nobody comes and goes in between."""
GRACE_SECONDS = 60.0


class Reading(NamedTuple):
    signal: str
    available: int
    total: int

    @property
    def share(self) -> float:
        """Of what there is, what is left."""
        return self.available / self.total if self.total > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Threshold:
    """Shares of what there is, that are to be left."""

    soft: float
    """With less, the node is under pressure; after `grace_seconds`, somebody has to go."""
    hard: float
    """With less, somebody has to go at once."""
    grace_seconds: float = GRACE_SECONDS

    @classmethod
    def parse(cls, text: str) -> "Threshold | None":
        """`10%:5%:60s`; the last part may be left out; `off` is none. A `ValueError` for anything else."""
        if text == "off":
            return None
        parts = text.split(":")
        try:
            soft, hard = (_share(part) for part in parts[:2])
            grace = float(Seconds.parse(parts[2])) if len(parts) == 3 else GRACE_SECONDS
        except ValueError:
            raise ValueError(f"{text!r} is no threshold; write SOFT:HARD or SOFT:HARD:GRACE, as 10%:5%:60s") from None
        if len(parts) > 3 or not 0 <= hard <= soft < 1:
            raise ValueError(f"{text!r} is no threshold: 0% ≤ hard ≤ soft < 100%")
        return cls(soft, hard, grace)


def _share(text: str) -> float:
    if not text.endswith("%"):
        raise ValueError(text)
    return float(text[:-1]) / 100


USUAL: Mapping[str, Threshold] = {
    "memory": Threshold(soft=0.06, hard=0.03),
    "disk": Threshold(soft=0.10, hard=0.05, grace_seconds=120.0),
    "inodes": Threshold(soft=0.06, hard=0.03, grace_seconds=120.0),
}


class Need(NamedTuple):
    """Something must be given back now."""

    signal: str
    hard: bool
    share: float

    def __str__(self) -> str:
        return f"{self.share:.1%} of its {self.signal} {'are' if self.signal == 'inodes' else 'is'} left"


class Pressure:
    """Remembers since when there has been too little, and since when enough again."""

    def __init__(self, thresholds: Mapping[str, Threshold]) -> None:
        self._thresholds = thresholds
        self._short_since: dict[str, float] = {}
        self._short_last: dict[str, float] = {}
        self._least: dict[str, float] = {}
        self._now = 0.0

    def update(self, readings: Iterable[Reading], now: float) -> None:
        """Of several readings of one signal the worst counts."""
        self._now = now
        self._least = {}
        for each in readings:
            self._least[each.signal] = min(each.share, self._least.get(each.signal, 1.0))
        for signal, share in self._least.items():
            threshold = self._thresholds.get(signal)
            if threshold is not None and share < threshold.soft:
                self._short_since.setdefault(signal, now)
                self._short_last[signal] = now
            else:
                self._short_since.pop(signal, None)

    @property
    def shown(self) -> tuple[str, ...]:
        """What the node is short of, or was a moment ago."""
        return tuple(sorted(each for each, last in self._short_last.items() if self._now - last < CALM_SECONDS))

    @property
    def short(self) -> tuple[str, ...]:
        """What there is too little of at this moment."""
        return tuple(sorted(self._short_since))

    @property
    def need(self) -> Need | None:
        """The most urgent one."""
        found = [need for signal in self._short_since if (need := self._need(signal)) is not None]
        return min(found, key=lambda each: (not each.hard, each.share), default=None)

    def _need(self, signal: str) -> Need | None:
        threshold, share = self._thresholds[signal], self._least[signal]
        if share < threshold.hard:
            return Need(signal, True, share)
        if self._now - self._short_since[signal] >= threshold.grace_seconds:
            return Need(signal, False, share)
        return None


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """An instance that could go."""

    uid: str
    priority: int
    used: int
    asked: int
    """What was kept for it."""


def select_victim(tenants: Iterable[EvictionCandidate]) -> EvictionCandidate | None:
    """Whoever uses more than it asked for goes before those who do not; then whoever matters least; then whoever uses
    most beyond its request. Whoever uses none of it would go for nothing, unless nobody's use is known."""
    everybody = list(tenants)
    using = [each for each in everybody if each.used > 0] or everybody
    return min(using, key=lambda each: (each.used <= each.asked, each.priority, each.asked - each.used), default=None)
