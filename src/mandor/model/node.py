"""Node: a machine that can run instances."""

from enum import StrEnum
from typing import ClassVar, Literal

from msgspec import Struct, field

from mandor.model.meta import Object, check_name
from mandor.model.resources import Resources

Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class NodePhase(StrEnum):
    """What the node controller makes of a node's heartbeats."""

    UNKNOWN = "Unknown"
    READY = "Ready"
    SUSPECT = "Suspect"
    """Silent for a while: nothing new goes there."""
    DOWN = "Down"
    """Silent for too long: its instances are Lost."""


class Taint(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    key: str
    value: str = ""
    effect: Effect = "NoSchedule"


class NodeSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Written by users."""

    pool: str = "default"
    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    reserved: Resources = Resources()
    """Kept free for the machine itself."""
    forget_before_epoch: int = 0
    """Work that was ordered before this epoch of the cluster and that nobody knows any more may be stopped."""

    def __post_init__(self) -> None:
        check_name(self.pool, "pool")


class Capabilities(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """What an engine on a node says it can do (data, not code)."""

    version: str = ""
    up: bool = True
    images: bool = False
    """Runs images; without it, commands of the node itself."""
    limits: frozenset[str] = frozenset()
    """Which limits it enforces: cpu, memory, processes."""
    extras: frozenset[str] = frozenset()
    """Optional verbs: logs, exec, stats, events, pull, sandbox …"""
    loads: frozenset[str] = frozenset()
    """The kinds of image files it takes: archive, incus."""
    message: str = ""


class PortRange(Struct, frozen=True, gc=False, omit_defaults=True):
    """The node's ports from which one is chosen for an instance that asks for any."""

    first: int = 20_000
    last: int = 32_000
    taken: tuple[int, ...] = ()
    """Ports that programs which are not Mandor's were found to hold, wherever they are; the agent looks again."""

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    @classmethod
    def parse(cls, text: str) -> "PortRange":
        """`20000-32000`; a `ValueError` for anything else."""
        first, dash, last = text.partition("-")
        if not (dash and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= 65_535):
            raise ValueError(f"{text!r} is not a range of ports; write FIRST-LAST, as 20000-32000")
        return cls(int(first), int(last))


USUAL_PORTS = PortRange()


class NodeStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """Written by the node's agent, except `phase`, `reason` and `since`: the node controller's."""

    phase: NodePhase
    reason: str = ""
    since: float = 0.0
    address: str = ""
    capacity: Resources = Resources()
    engines: dict[str, Capabilities] = {}
    facts: dict[str, str] = {}
    """What the agent found: os, arch, kernel.version, hostname, cpu.model, boot."""
    agent_version: str = ""
    images: dict[str, int] = {}
    """Images that are there already, with their sizes in bytes."""
    ports: PortRange = USUAL_PORTS
    """What it has for instances that ask for any port of their node."""
    usage: Resources | None = None
    """What is really used, as the agent last measured it; absent: not measured."""


UNKNOWN = NodeStatus(phase=NodePhase.UNKNOWN)


class Node(Object, frozen=True, tag="node"):
    kind: ClassVar[str] = "node"
    plural: ClassVar[str] = "nodes"
    namespaced: ClassVar[bool] = False

    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=lambda: UNKNOWN)

    @property
    def node(self) -> str:
        return self.meta.name

    @property
    def allocatable(self) -> Resources:
        return self.status.capacity - self.spec.reserved
