"""Measures a part of a run: binds over time, duration of decisions, CPU and memory."""

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.workload import Workload

SAMPLE_SECONDS = 1.0
"""As in scheduler_perf."""
SHORT_SECONDS = 5.0
SHORT_SAMPLES = 20
"""Number of samples of a part that is shorter than that many seconds."""
DECISIONS_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Scope:
    """Selects the instances whose binds are counted."""

    namespaces: frozenset[str]
    labels: dict[str, str] = field(default_factory=dict)


class Meter:
    """Counts binds between `start` and `stop`."""

    def __init__(self) -> None:
        self._scope: Scope | None = None
        self._workloads: dict[tuple[str, str], bool] = {}
        self._labels: dict[Key, dict[str, str]] = {}
        self._began = self._ended = 0.0
        self._cpu = self._loop_cpu = 0.0
        self.cpu_seconds = self.loop_cpu_seconds = 0.0
        self.bound: list[float] = []
        """Monotonic times of the binds."""
        self.waited: list[float] = []
        """Seconds from creation to bind, for each bind."""
        self.decided: list[float] = []

    @property
    def used(self) -> bool:
        return self._scope is not None

    @property
    def running(self) -> bool:
        return self.used and not self._ended

    def start(self, scope: Scope) -> None:
        self._scope = scope
        self._began, self._cpu, self._loop_cpu = time.monotonic(), time.process_time(), time.thread_time()

    def stop(self) -> None:
        if self.running:
            self._ended = time.monotonic()
            self.cpu_seconds = time.process_time() - self._cpu
            self.loop_cpu_seconds = time.thread_time() - self._loop_cpu

    def know(self, workload: Workload) -> None:
        """Register the labels of an instance."""
        self._labels[workload.key] = workload.meta.labels

    def count_bind(self, instance: Instance) -> None:
        """Count the bind of an instance."""
        if not self.running:
            return
        name = instance.meta.namespace, instance.spec.workload
        counted = self._workloads.get(name)
        if counted is None:
            counted = self._workloads[name] = self._counts(Key(Workload.kind, *name))
        if counted:
            now = time.monotonic()
            self.bound.append(now)
            self.waited.append(time.time() - instance.meta.created_at)

    def decision(self, seconds: float) -> None:
        if self.running and len(self.decided) < DECISIONS_MOST:
            self.decided.append(seconds)

    def _counts(self, key: Key) -> bool:
        assert self._scope is not None
        labels = self._labels.get(key, {})
        return key.namespace in self._scope.namespaces and all(
            labels.get(name) == value for name, value in self._scope.labels.items()
        )

    # Results.

    @property
    def seconds(self) -> float:
        """Return the seconds until the last bind, or the whole duration if nothing was bound."""
        return (self.bound[-1] if self.bound else self._ended) - self._began

    def throughput(self) -> dict[str, float]:
        """Return binds per second; percentiles are those of the samples. A sample without binds extends the next one,
        as in scheduler_perf."""
        each = SAMPLE_SECONDS if self.seconds >= SHORT_SECONDS else max(self.seconds / SHORT_SAMPLES, 0.001)
        counts: dict[int, int] = {}
        for at in self.bound:
            number = int((at - self._began) / each)
            counts[number] = counts.get(number, 0) + 1
        samples, last = [], -1
        for number, count in sorted(counts.items()):
            samples.append(count / ((number - last) * each))
            last = number
        average = len(self.bound) / self.seconds if self.bound and self.seconds > 0 else 0.0
        return {"average": round(average, 1), **percentiles(sorted(samples), 1), "sample_seconds": round(each, 4)}

    def results(self) -> dict[str, Any]:
        binds = len(self.bound)
        return {
            "throughput": self.throughput(),
            "bound": binds,
            "seconds": round(self.seconds, 3),
            "decision_ms": percentiles(sorted(each * 1000 for each in self.decided), 4),
            "bound_after_ms": percentiles(sorted(each * 1000 for each in self.waited), 1),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "loop_cpu_seconds": round(self.loop_cpu_seconds, 3),
            "bound_per_cpu_second": round(binds / self.cpu_seconds, 1) if self.cpu_seconds else 0.0,
            "memory_peak_bytes": peak_bytes(),
        }


def percentiles(ordered: Sequence[float], digits: int) -> dict[str, float]:
    """Return the smallest value that this share of the values does not exceed."""
    found = {}
    for percent in (50, 90, 99):
        rank = max(0, -(-len(ordered) * percent // 100) - 1)
        found[f"p{percent}"] = round(ordered[rank], digits) if ordered else 0.0
    return found


def peak_bytes() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
