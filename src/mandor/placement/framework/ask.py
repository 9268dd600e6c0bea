"""The instance being placed, as numbers and rules."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from mandor.model.meta import Key
from mandor.model.placement import Toleration, Where
from mandor.model.workload import GroupTemplate

CPU, MEMORY, DISK = "cpu", "memory", "disk"

CPU_COUNTED_MILLI = 100
MEMORY_COUNTED_BYTES = 200 * 1024 * 1024
"""What Kubernetes counts, in scores only, for a program that asks for nothing: else all such would look weightless."""


class HostPort(NamedTuple):
    """A port of the node itself: two instances that want the same one cannot share a node."""

    port: int
    protocol: str


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What all instances of one group of one release ask for; computed once."""

    wanted: tuple[tuple[str, int], ...]
    """Amounts by resource; nothing that is zero."""
    counted: tuple[int, int]
    """CPU and memory as scores count them."""
    host_ports: tuple[HostPort, ...]
    engines: tuple[str, ...]
    """Any of these, in order of preference; empty: whichever can run it."""
    images: frozenset[bool]
    """What its tasks are: True for an image, False for a command of the node itself."""
    pool: str | None
    tolerate: tuple[Toleration, ...]
    must: tuple[Where, ...]
    should: tuple[Where, ...]
    prefer: tuple[Where, ...]

    @classmethod
    def of(cls, group: GroupTemplate) -> "Shape":
        request = group.request
        amounts = {CPU: request.cpu_milli, MEMORY: request.memory_bytes, DISK: request.disk_bytes, **request.devices}
        where = group.placement.where
        return cls(
            wanted=tuple((name, amount) for name, amount in amounts.items() if amount > 0),
            counted=_counted(group),
            host_ports=tuple(
                HostPort(port.host, port.protocol) for port in group.ports.values() if port.host is not None
            ),
            engines=group.engine,
            images=frozenset(task.image is not None for task in group.tasks.values()),
            pool=group.placement.pool,
            tolerate=group.placement.tolerate,
            must=tuple(each for each in where if each.strength == "must"),
            should=tuple(each for each in where if each.strength == "should"),
            prefer=tuple(each for each in where if each.strength == "prefer"),
        )


def _counted(group: GroupTemplate) -> tuple[int, int]:
    together = [task.resources.request for task in group.tasks.values() if task.role != "init"]
    request = group.request
    cpu = sum(each.cpu_milli or CPU_COUNTED_MILLI for each in together)
    memory = sum(each.memory_bytes or MEMORY_COUNTED_BYTES for each in together)
    return max(cpu, request.cpu_milli), max(memory, request.memory_bytes)


@dataclass(frozen=True, slots=True)
class Ask:
    """One instance that needs a node."""

    key: Key
    shape: Shape
    priority: int = 0
    profile: str = "default"
    avoid: frozenset[str] = frozenset()
    """Nodes where earlier copies failed: elsewhere first."""
    dropped: int = 0
    """So many of the `should` rules are given up, the last declared first."""

    @property
    def hard(self) -> tuple[Where, ...]:
        """The rules a node must keep, as things stand."""
        return self.shape.must + self.shape.should[: len(self.shape.should) - self.dropped]

    @property
    def given_up(self) -> tuple[Where, ...]:
        return self.shape.should[len(self.shape.should) - self.dropped :]

    def without_avoid(self) -> "Ask":
        return replace(self, avoid=frozenset())

    def without_last_should(self) -> "Ask":
        return replace(self, dropped=self.dropped + 1)
