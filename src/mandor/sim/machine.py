"""A simulated machine: what it has, what its instances and everything else on it use, and what is left."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from os.path import exists
from posixpath import normpath

from mandor.agent.pressure import Reading
from mandor.engines.base import Launch, Unit, Usage
from mandor.lib.clock import Clock
from mandor.model.resources import Resources
from mandor.model.usage import NodeUsage
from mandor.model.volume import path_allowed

INODES = 1_000_000
NOTHING = Resources()
IDLE = NodeUsage()


@dataclass(slots=True)
class SimMachine:
    """`overhead`: what the kernel and the engine take; `others`: what strangers on it do, which a fault may set."""

    clock: Clock
    has: Resources
    overhead: Resources = NOTHING
    others: Resources = NOTHING
    facts_known: Mapping[str, str] = field(default_factory=dict)
    host_paths: Sequence[str] = ()
    """Folders of it that are said to be there, with all that work asks for below them."""
    used: Callable[[], tuple[Resources, float]] = lambda: (NOTHING, 0.0)
    """What its instances use now, the same object as long as it is the same; and until when, if nobody says
    `look_again`."""
    changed: Callable[[], None] = lambda: None
    """Called when a look found something else than the one before."""
    until: float = 0.0
    """A look finds what the last one did."""
    _of: tuple[Resources, ...] = ()
    """What the rest was worked out from."""
    _in_use: Resources = NOTHING
    last: Sequence[Reading] = ()
    """What the last look found to be left; the same object as long as it is the same."""
    _usage: NodeUsage = IDLE

    def capacity(self) -> Resources:
        return self.has

    def facts(self) -> Mapping[str, str]:
        return self.facts_known

    def real_path(self, path: str) -> str:
        """It has no links."""
        return normpath(path)

    def has_path(self, path: str) -> bool:
        return path_allowed(path, self.host_paths) or exists(path)

    def become(self, has: Resources) -> None:
        """It has so much from now on."""
        self.has = has
        self.look_again()

    def take(self, others: Resources) -> None:
        """Strangers on it use so much from now on."""
        self.others = others
        self.look_again()

    def look_again(self) -> None:
        """Something may be different."""
        self.until = 0.0

    def _look(self) -> None:
        """What follows from what is used is kept with it: it is asked for at every tick."""
        if self.clock.monotonic() < self.until:
            return
        used, self.until = self.used()
        of = used, self.others, self.has
        if len(self._of) == len(of) and all(map(is_, self._of, of)):
            return
        now = self._in_use = self.overhead + self.others + used
        self._of = of
        self.last = self._read(now)
        self._usage = NodeUsage(cpu_milli=now.cpu_milli, memory_bytes=now.memory_bytes, disk_bytes=now.disk_bytes)
        self.changed()

    @property
    def in_use(self) -> Resources:
        self._look()
        return self._in_use

    def usage(self) -> NodeUsage:
        """The same object as long as it is the same."""
        self._look()
        return self._usage

    def readings(self) -> Sequence[Reading]:
        """The same object as long as they are the same."""
        self._look()
        return self.last

    def _read(self, used: Resources) -> Sequence[Reading]:
        return [
            Reading("memory", max(0, self.has.memory_bytes - used.memory_bytes), self.has.memory_bytes),
            Reading("disk", max(0, self.has.disk_bytes - used.disk_bytes), self.has.disk_bytes),
            Reading("inodes", INODES // 2, INODES),
        ]


UnitUsage = Callable[[Unit, Launch], Resources]
"""What a unit uses now."""


@dataclass(slots=True)
class UsageCounter:
    """What one unit has used up so far."""

    since: float
    cpu_seconds: float = 0.0
    now: Resources = NOTHING

    def until(self, at: float, wants: Resources) -> Usage:
        self.cpu_seconds += self.now.cpu_milli / 1000 * max(0.0, at - self.since)
        self.since, self.now = at, wants
        return Usage(self.cpu_seconds, wants.memory_bytes)
