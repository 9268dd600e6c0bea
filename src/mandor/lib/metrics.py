"""Metrics of a process, and their text format for Prometheus.

Frequent events are counted in plain numbers; names, labels and text are made when the metrics are read.
"""

import asyncio
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Histogram bounds in seconds for short operations."""
LINES = 500
"""Lines written between two yields to other tasks."""

Values = tuple[str, ...]
"""Values of a family's labels, in their order."""
V = TypeVar("V", bound=Values)


class Counts(defaultdict[Values, float]):
    """Numbers by label values: `counts["placed", "default"] += 1`."""

    def __init__(self) -> None:
        super().__init__(float)


class Spread:
    """A histogram."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Spreads(defaultdict[Values, Spread]):
    """Histograms by label values."""

    def __init__(self) -> None:
        super().__init__(Spread)


@dataclass(slots=True)
class Spent:
    """A summary: number of calls and their total time."""

    calls: int = 0
    seconds: float = 0.0


Sample = float | Spread | Spent


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "summary"]
    meaning: str
    samples: Iterable[tuple[Values, Sample]]
    labels: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {_escaped(self.meaning, quotes=False)}"
        yield f"# TYPE {self.name} {self.kind}"
        for values, sample in self.samples:
            labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(self.labels, values, strict=True))
            yield from _sample_lines(self.name, labels, sample)


def counter(name: str, meaning: str, samples: Mapping[V, float] | float, *labels: str) -> Family:
    return Family(name, "counter", meaning, _samples(samples), labels)


def gauge(
    name: str, meaning: str, samples: Mapping[V, float] | Iterator[tuple[V, float]] | float, *labels: str
) -> Family:
    """Make a gauge. An iterator is read while the lines are written, which other tasks may interrupt."""
    return Family(name, "gauge", meaning, _samples(samples), labels)


def histogram(name: str, meaning: str, samples: Mapping[V, Spread] | Spread, *labels: str) -> Family:
    return Family(name, "histogram", meaning, _samples(samples), labels)


def summary(name: str, meaning: str, samples: Mapping[V, Spent], *labels: str) -> Family:
    return Family(name, "summary", meaning, _samples(samples), labels)


Collector = Callable[[], Iterable[Family]]
"""Returns current metrics; called in the event loop at every scrape, so it must be quick."""


class Metrics:
    """All collectors of a process."""

    def __init__(self) -> None:
        self._collectors: list[Collector] = []

    def add(self, collector: Collector) -> Callable[[], None]:
        """Add a collector; the result removes it."""
        self._collectors.append(collector)
        return lambda: self._collectors.remove(collector)

    async def text(self) -> bytes:
        lines: list[str] = []
        pieces: list[str] = []
        for collector in list(self._collectors):
            for family in collector():
                for line in family.lines():
                    lines.append(line)
                    if len(lines) >= LINES:
                        pieces.append("\n".join(lines))
                        lines.clear()
                        await asyncio.sleep(0)
        return ("\n".join([*pieces, *lines]) + "\n").encode()


def _samples(
    given: Mapping[V, float] | Mapping[V, Spread] | Mapping[V, Spent] | Iterator[tuple[V, float]] | Sample,
) -> Iterable[tuple[Values, Sample]]:
    if isinstance(given, Iterator):
        return given
    # A copy: it is written in steps, between which counting continues.
    return list(given.items()) if isinstance(given, Mapping) else [((), given)]


def _sample_lines(name: str, labels: str, sample: Sample) -> Iterator[str]:
    braces = f"{{{labels}}}" if labels else ""
    if isinstance(sample, Spread):
        before = f"{labels}," if labels else ""
        below = list(accumulate(sample.counts))
        for bound, count in zip((*map(_number, sample.bounds), "+Inf"), below, strict=True):
            yield f'{name}_bucket{{{before}le="{bound}"}} {count}'
        yield f"{name}_sum{braces} {_number(sample.sum)}"
        yield f"{name}_count{braces} {below[-1]}"
    elif isinstance(sample, Spent):
        yield f"{name}_sum{braces} {_number(sample.seconds)}"
        yield f"{name}_count{braces} {sample.calls}"
    else:
        yield f"{name}{braces} {_number(sample)}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(text: str, *, quotes: bool = True) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text
