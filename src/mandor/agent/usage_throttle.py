"""Decides when the measured usage of the node is written to its object: rarely, since every watcher reads it."""

from collections.abc import Iterable, Mapping

from mandor.lib.clock import Clock
from mandor.model.resources import Resources
from mandor.model.usage import InstanceUsage, NodeUsage

STEADY_SECONDS = 30.0
"""Shortest interval in seconds for a notable change: a twentieth of the capacity, or other instances."""
SUDDEN_SECONDS = 10.0
"""Shortest interval in seconds for a large change: a fifth of the capacity."""
NOTABLE, SUDDEN = 20, 5
"""Divisors of the capacity."""


class UsageThrottle:
    """Keeps the last usage that was worth writing; nodes whose usage does not change cause no writes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._measures = 0
        self._at = 0.0
        self._instances: frozenset[str] = frozenset()
        self.reported: Resources | None = None

    def measured(
        self, used: Resources, capacity: Resources, instances: Iterable[str], *, stored: Resources | None = None
    ) -> bool:
        """Take a measurement; return whether `reported` changed and is to be written. `stored`: the stored usage."""
        self._measures += 1
        now, here = self._clock.monotonic(), frozenset(instances)
        if self.reported is None and stored is not None:  # written by an earlier agent process
            self.reported, self._at, self._instances = stored, now, here
        if self._measures < 2 or not self._due(used, capacity, here, now - self._at):
            return False  # the first measurement spans no time: its rates are meaningless
        self.reported, self._at, self._instances = used, now, here
        return True

    def _due(self, used: Resources, capacity: Resources, here: frozenset[str], passed: float) -> bool:
        if self.reported is None:
            return True
        if used == self.reported and here == self._instances:
            return False
        if passed >= STEADY_SECONDS and (here != self._instances or _moved(self.reported, used, capacity, NOTABLE)):
            return True
        return passed >= SUDDEN_SECONDS and _moved(self.reported, used, capacity, SUDDEN)


def used_by_all(machine: NodeUsage) -> Resources:
    return Resources(machine.cpu_milli, machine.memory_bytes, machine.disk_bytes)


def used_by_own(instances: Mapping[str, InstanceUsage]) -> Resources:
    """Return the usage of a node that is part of its machine: the machine's counters include other nodes."""
    each = instances.values()
    return Resources(sum(one.cpu_milli for one in each), sum(one.memory_bytes for one in each))


def _moved(before: Resources, now: Resources, capacity: Resources, parts: int) -> bool:
    pairs = (
        (before.cpu_milli, now.cpu_milli, capacity.cpu_milli),
        (before.memory_bytes, now.memory_bytes, capacity.memory_bytes),
        (before.disk_bytes, now.disk_bytes, capacity.disk_bytes),
    )
    return any(abs(old - new) * parts >= most > 0 for old, new, most in pairs)
