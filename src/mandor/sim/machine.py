"""A simulated machine: what it has, what its instances and everything else on it use, and what is left."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mandor.agent.pressure import Reading
from mandor.engines.base import Launch, Unit, Usage
from mandor.model.resources import Resources
from mandor.model.usage import NodeUsage

INODES = 1_000_000
NOTHING = Resources()
IDLE = NodeUsage()


@dataclass(slots=True)
class SimMachine:
    """`overhead`: what the kernel and the engine take; `others`: what strangers on it do, which a fault may set."""

    has: Resources
    overhead: Resources = NOTHING
    others: Resources = NOTHING
    facts_known: Mapping[str, str] = field(default_factory=dict)
    used: Callable[[], Resources] = Resources
    """What its instances use now: the same object as long as it is the same."""
    _of: tuple[Resources | None, Resources | None] = (None, None)
    """What instances and strangers used when the rest was worked out."""
    _in_use: Resources = NOTHING
    _readings: Sequence[Reading] = ()
    _usage: NodeUsage = IDLE

    def capacity(self) -> Resources:
        return self.has

    def facts(self) -> Mapping[str, str]:
        return self.facts_known

    @property
    def in_use(self) -> Resources:
        self._look()
        return self._in_use

    def _look(self) -> None:
        """What follows from what is used is kept with it: it is asked for at every tick."""
        used, others = self.used(), self.others
        if self._of[0] is used and self._of[1] is others:
            return
        now = self._in_use = self.overhead + others + used
        self._of = used, others
        self._readings = self._read(now)
        self._usage = NodeUsage(cpu_milli=now.cpu_milli, memory_bytes=now.memory_bytes, disk_bytes=now.disk_bytes)

    def usage(self) -> NodeUsage:
        """The same object as long as it is the same."""
        self._look()
        return self._usage

    def readings(self) -> Sequence[Reading]:
        """The same object as long as they are the same."""
        self._look()
        return self._readings

    def _read(self, used: Resources) -> Sequence[Reading]:
        return [
            Reading("memory", max(0, self.has.memory_bytes - used.memory_bytes), self.has.memory_bytes),
            Reading("disk", max(0, self.has.disk_bytes - used.disk_bytes), self.has.disk_bytes),
            Reading("inodes", INODES // 2, INODES),
        ]


Hunger = Callable[[Unit, Launch], Resources]
"""What a unit uses now."""


@dataclass(slots=True)
class Meal:
    """What one unit has used up so far."""

    since: float
    cpu_seconds: float = 0.0
    now: Resources = NOTHING

    def until(self, at: float, wants: Resources) -> Usage:
        self.cpu_seconds += self.now.cpu_milli / 1000 * max(0.0, at - self.since)
        self.since, self.now = at, wants
        return Usage(self.cpu_seconds, wants.memory_bytes)
