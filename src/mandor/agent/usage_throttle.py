"""How busy this node is, as its stored object shows it: written rarely, for every write is read by everybody."""

from collections.abc import Iterable, Mapping

from mandor.lib.clock import Clock
from mandor.model.resources import Resources
from mandor.model.usage import InstanceUsage, NodeUsage

STEADY_SECONDS = 30.0
"""No more often than that, if it is something at all: a twentieth of the node, or other instances than before."""
SUDDEN_SECONDS = 10.0
"""No more often than that, if it is a lot: a fifth of the node."""
NOTABLE, SUDDEN = 20, 5
"""Parts of the capacity."""


class UsageThrottle:
    """Keeps the last measure that was worth telling. At 5,000 nodes that do not change it costs no write at all."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._measures = 0
        self._at = 0.0
        self._instances: frozenset[str] = frozenset()
        self.told: Resources | None = None

    def measured(
        self, used: Resources, capacity: Resources, instances: Iterable[str], *, stored: Resources | None = None
    ) -> bool:
        """True: the world should hear of it; `told` is what it should hear. `stored`: what it heard last."""
        self._measures += 1
        now, here = self._clock.monotonic(), frozenset(instances)
        if self.told is None and stored is not None:  # another agent told it, before this one began
            self.told, self._at, self._instances = stored, now, here
        if self._measures < 2 or not self._due(used, capacity, here, now - self._at):
            return False  # the first measure spans no time: its rates mean nothing
        self.told, self._at, self._instances = used, now, here
        return True

    def _due(self, used: Resources, capacity: Resources, here: frozenset[str], passed: float) -> bool:
        if self.told is None:
            return True
        if used == self.told and here == self._instances:
            return False
        if passed >= STEADY_SECONDS and (here != self._instances or _moved(self.told, used, capacity, NOTABLE)):
            return True
        return passed >= SUDDEN_SECONDS and _moved(self.told, used, capacity, SUDDEN)


def used_by_all(machine: NodeUsage) -> Resources:
    return Resources(machine.cpu_milli, machine.memory_bytes, machine.disk_bytes)


def used_by_own(instances: Mapping[str, InstanceUsage]) -> Resources:
    """Of a node that is a part of its machine: the machine's counters tell of its neighbours, too."""
    each = instances.values()
    return Resources(sum(one.cpu_milli for one in each), sum(one.memory_bytes for one in each))


def _moved(before: Resources, now: Resources, capacity: Resources, parts: int) -> bool:
    pairs = (
        (before.cpu_milli, now.cpu_milli, capacity.cpu_milli),
        (before.memory_bytes, now.memory_bytes, capacity.memory_bytes),
        (before.disk_bytes, now.disk_bytes, capacity.disk_bytes),
    )
    return any(abs(old - new) * parts >= most > 0 for old, new, most in pairs)
