"""A simulated machine: its size, the usage of instances and other programs, and what is left."""

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
    """`overhead`: usage of the kernel and the engine; `others`: usage of other programs, set by faults."""

    clock: Clock
    has: Resources
    overhead: Resources = NOTHING
    others: Resources = NOTHING
    facts_known: Mapping[str, str] = field(default_factory=dict)
    host_paths: Sequence[str] = ()
    """Paths that exist on the machine, with everything below them."""
    used: Callable[[], tuple[Resources, float]] = lambda: (NOTHING, 0.0)
    """Returns the usage of its instances and until when it holds unless `look_again` is called; the same object while
    usage does not change."""
    changed: Callable[[], None] = lambda: None
    """Called when readings or usage have changed."""
    until: float = 0.0
    """Time until which the cached values hold."""
    _of: tuple[Resources, ...] = ()
    """Inputs of the cached values below."""
    _in_use: Resources = NOTHING
    last: Sequence[Reading] = ()
    """Last readings; the same object while they do not change."""
    _usage: NodeUsage = IDLE

    def capacity(self) -> Resources:
        return self.has

    def facts(self) -> Mapping[str, str]:
        return self.facts_known

    def real_path(self, path: str) -> str:
        """Return the path itself: a simulated machine has no links."""
        return normpath(path)

    def has_path(self, path: str) -> bool:
        return path_allowed(path, self.host_paths) or exists(path)

    def become(self, has: Resources) -> None:
        """Change the size of the machine."""
        self.has = has
        self.look_again()

    def take(self, others: Resources) -> None:
        """Set the usage of other programs on the machine."""
        self.others = others
        self.look_again()

    def look_again(self) -> None:
        """Invalidate the cached values."""
        self.until = 0.0

    def _look(self) -> None:
        """Recompute the cached readings and usage if their inputs have changed."""
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
"""Returns the current usage of a unit."""


@dataclass(slots=True)
class UsageCounter:
    """CPU time of one unit so far, and its current usage."""

    since: float
    cpu_seconds: float = 0.0
    now: Resources = NOTHING

    def until(self, at: float, wants: Resources) -> Usage:
        self.cpu_seconds += self.now.cpu_milli / 1000 * max(0.0, at - self.since)
        self.since, self.now = at, wants
        return Usage(self.cpu_seconds, wants.memory_bytes)
