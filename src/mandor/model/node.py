"""Node: a machine that can run instances."""

from enum import StrEnum
from typing import ClassVar, Literal

import msgspec
from msgspec import Struct, field

from mandor.lib.quantity import Seconds
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


class Drain(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Nothing new goes to the node, and everything that is there goes elsewhere, within its budgets."""

    deadline: Seconds | None = None
    """So long batches may run on to their end; absent: as long as they like."""
    force: bool = False
    """At the deadline (at once, if there is none) whatever is left is stopped, and no budget is asked."""


class NodeSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Written by users."""

    pool: str = "default"
    cordoned: bool = False
    """Nothing new goes there."""
    drain: Drain | None = None
    """It is to be emptied, and kept empty; absent: it is not."""
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
    message: str = ""


DrainPhase = Literal["Draining", "Waiting", "Late", "Drained"]


class DrainStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """How far a drain is."""

    phase: DrainPhase
    """Waiting: nothing can leave just now; Late: its deadline has passed and something is left."""
    since: float
    """When it began."""
    total: int = 0
    """So many instances were there to leave."""
    left: int = 0
    """So many of them are still there."""
    moving: int = 0
    """So many of those are on their way."""
    waiting: tuple[str, ...] = ()
    """What the others wait for."""


class NodeStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """Written by the node's agent, except `phase`, `reason`, `since` and `drain`: the controllers'."""

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
    usage: Resources | None = None
    """What is really used, as the agent last measured it; absent: not measured."""
    drain: DrainStatus | None = None
    """How far its drain is; absent: it is not drained."""


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
    def drain(self) -> Drain | None:
        """How it is to be emptied; None: it is not."""
        return self.spec.drain

    @property
    def closed(self) -> bool:
        """Nothing new goes there, because somebody said so."""
        return self.spec.cordoned or self.drain is not None

    @property
    def opened(self) -> "Node":
        """The same node as it would be if nobody had."""
        return self.changed(spec=msgspec.structs.replace(self.spec, cordoned=False, drain=None))

    @property
    def allocatable(self) -> Resources:
        return self.status.capacity - self.spec.reserved
