"""Node: a machine that can run instances."""

from collections.abc import Iterable, Mapping, Set
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, cast, get_args

import msgspec
from msgspec import Struct, field

from mandor.lib.quantity import Seconds
from mandor.model.features import needs
from mandor.model.log_sink import SinkHealth
from mandor.model.meta import Object, check_labels, check_name
from mandor.model.resources import Resources

Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
TAINTS_MOST = 32
CLOCK_AHEAD = "clock.ahead"
"""Fact with the number of seconds by which the node's clock is ahead of the servers'; absent if it is only a few."""
CONTROL_PLANE = "control-plane"
"""Label of nodes that carry a server of the control plane; with the value `false` they count as other nodes."""
INSTANCES_MAX = "instances.max"
"""Fact, or label, with the largest number of instances that a node may hold; absent: no limit."""
RENEWS = "credential.renews"
"""Fact that is `yes` if the agent can renew its credential; absent for agents that cannot."""


class NodePhase(StrEnum):
    """Health of a node according to its heartbeats."""

    UNKNOWN = "Unknown"
    READY = "Ready"
    SUSPECT = "Suspect"
    """No heartbeats for a short time: no new instances are placed on the node."""
    DOWN = "Down"
    """No heartbeats for too long: the node's instances are Lost."""


class Taint(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Repels instances that do not tolerate it; written as `KEY=VALUE:EFFECT` or `KEY:EFFECT`."""

    key: str
    value: str = ""
    effect: Effect = "NoSchedule"
    """`NoSchedule`: no new instances. `PreferNoSchedule`: other nodes are preferred. `NoExecute`: running instances are
    evicted, too. Defaults to `NoSchedule`.
    """
    since: float = 0.0
    """Unix time at which a NoExecute taint was set; written by the API."""

    def __post_init__(self) -> None:
        check_labels({self.key: self.value})

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"

    @classmethod
    def parse(cls, text: str) -> "Taint":
        named, colon, effect = text.rpartition(":")
        key, _, value = named.partition("=")
        if not colon or effect not in get_args(Effect):
            raise ValueError(
                f"{text!r} is not a taint; write KEY=VALUE:EFFECT, with the effect {', '.join(get_args(Effect))}"
            )
        return cls(key, value, cast(Effect, effect))


PRESSURE_TAINTS: Mapping[str, Taint] = {
    "memory": Taint("memory-pressure"),
    "disk": Taint("disk-pressure"),
    "inodes": Taint("inode-pressure"),
}
"""Taint of a node that is short of a resource, by the resource."""
_SHORT_OF = {taint: resource for resource, taint in PRESSURE_TAINTS.items()}


def pressure_of(taints: Iterable[Taint]) -> tuple[str, ...]:
    """Return the resources whose pressure taints are among `taints`."""
    return tuple(_SHORT_OF[each] for each in taints if each in _SHORT_OF)


class Drain(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Moves all instances off the node, within their disruption budgets, and places no new ones."""

    deadline: Seconds | None = None
    """Time that batches may continue to run; absent: until they end."""
    force: bool = False
    """Whether the remaining instances are stopped at the deadline, or at once if there is none, without regard to
    disruption budgets.
    """
    since: float = 0.0
    """Unix time at which the drain was requested; written by the API."""


class Renewal(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A request to the agent to renew the node's credential."""

    since: float
    overlap_seconds: float = 3600.0
    """Seconds during which the old credential stays valid beside the new one."""


class NodeSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Settings of a node, written by users."""

    pool: str = "default"
    cordoned: bool = False
    """Whether the node is closed for new instances."""
    drain: Drain | None = None
    """The node is being drained and kept empty; absent if not."""
    taints: tuple[Taint, ...] = ()
    reserved: Resources = Resources()
    """Resources reserved for the system."""
    forget_before_epoch: int = 0
    """Instances ordered before this cluster epoch that the cluster no longer knows may be stopped."""
    maintained: float = 0.0
    """Opening time of the pool's last maintenance window in which this node was handled or skipped."""
    renewal: Annotated[Renewal | None, needs("credential-renewal")] = None
    """Pending request to renew the agent's credential; absent if none is pending."""

    def __post_init__(self) -> None:
        check_name(self.pool, "pool")
        if len(self.taints) > TAINTS_MOST:
            raise ValueError(f"{len(self.taints)} taints; at most {TAINTS_MOST} are allowed")
        if len({(each.key, each.effect) for each in self.taints}) < len(self.taints):
            raise ValueError("two taints have the same key and the same effect")


def stamped(before: NodeSpec, after: NodeSpec, now: float) -> NodeSpec:
    """Return the spec with `since` set on new taints and drains; only the API sets these times."""
    known = {str(each): each.since for each in before.taints}
    times = {each: known.get(str(each), now) for each in after.taints if each.effect == "NoExecute"}
    taints = tuple(msgspec.structs.replace(each, since=times.get(each, 0.0)) for each in after.taints)
    drain = after.drain
    if drain is not None:
        drain = msgspec.structs.replace(drain, since=before.drain.since if before.drain is not None else now)
    return msgspec.structs.replace(after, taints=taints, drain=drain)


MAPPED_USERS = "mapped-users"
"""Extra of an engine whose containers map 65,536 user ids, so that a namespace's user has another id inside them."""


COMMAND = "command"
"""Need of a group in which a task with an image has a command; an engine without `NO_COMMANDS` satisfies it."""
NO_COMMANDS = "no-commands"
"""Extra of an engine whose instances run only the programs of their image."""


class Capabilities(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Capabilities of an engine on a node."""

    version: str = ""
    up: bool = True
    images: bool = False
    """Whether the engine runs images; otherwise it runs commands of the node."""
    limits: frozenset[str] = frozenset()
    """Limits that the engine enforces: cpu, memory, processes."""
    extras: frozenset[str] = frozenset()
    """Optional operations: logs, exec, stats, events, pull, sandbox …"""
    loads: frozenset[str] = frozenset()
    """Formats of image files that the engine can load: archive, incus."""
    message: str = ""

    def runs(self, images: Iterable[bool], needs: Set[str]) -> bool:
        """Return whether the engine can run tasks of these kinds (True: an image, False: a command of the node) and
        offers all extras in `needs`.
        """
        both = not self.images or "commands" in self.extras
        missing = needs - self.extras
        if NO_COMMANDS not in self.extras:
            missing -= {COMMAND}
        return not missing and all(self.images if image else both for image in images)


ENGINE_FACT = "engine."
"""Prefix of facts about engines."""


def engine_facts(engines: Mapping[str, Capabilities]) -> dict[str, str]:
    """Return the facts about a node's engines that node rules can use: `engine.docker.version version >= 24`,
    `engine.incus.machines == true`.
    """
    found: dict[str, str] = {}
    for name, each in engines.items():
        known = {"up": each.up, "images": each.images}
        known |= dict.fromkeys((*each.extras, *(f"limits.{limit}" for limit in each.limits)), True)
        found |= {f"{ENGINE_FACT}{name}.{what}": str(answer).lower() for what, answer in known.items()}
        if each.version:
            found[f"{ENGINE_FACT}{name}.version"] = each.version
    return found


class PortRange(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Host ports from which one is chosen for an instance that requests `auto`."""

    first: int = 20_000
    last: int = 32_000
    taken: tuple[int, ...] = ()
    """Ports in use by programs that Mandor did not start; updated by the agent."""

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    @classmethod
    def parse(cls, text: str) -> "PortRange":
        """Parse `20000-32000`; raises `ValueError` for other text."""
        first, dash, last = text.partition("-")
        if not (dash and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= 65_535):
            raise ValueError(f"{text!r} is not a port range; write FIRST-LAST, for example 20000-32000")
        return cls(int(first), int(last))


USUAL_PORTS = PortRange()


DrainPhase = Literal["Draining", "Waiting", "Late", "Drained"]


class DrainStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Progress of a drain."""

    phase: DrainPhase
    """`Draining`; `Waiting`: no instance can leave at present; `Late`: the deadline has passed and instances are left;
    `Drained`.
    """
    since: float
    """Unix time at which the drain started."""
    total: int = 0
    """Number of instances when the drain started."""
    left: int = 0
    """Number of instances still on the node."""
    moving: int = 0
    """Number of instances being moved."""
    waiting: tuple[str, ...] = ()
    """Reasons why the other instances cannot leave yet."""


class Maintenance(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """The node's turn in its pool's maintenance window: it is drained, kept empty for a while, and reopened."""

    window: float
    """Unix time at which the window opened."""
    drain: Drain
    """Settings of the drain."""
    empty_since: float = 0.0
    """Unix time since which the node is empty; 0 if it is not."""
    until: float = 0.0
    """Unix time at which the node is reopened at the latest."""


class Occupied(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Resources of an inventory's machine in use by virtual machines that Mandor does not manage."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    machines: int = 0
    """Number of such virtual machines."""


class NodeStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Status of a node. The agent writes it, except `phase`, `reason`, `since`, `drain` and `maintenance`, which
    controllers write.
    """

    phase: NodePhase
    reason: str = ""
    since: float = 0.0
    address: str = ""
    capacity: Resources = Resources()
    engines: dict[str, Capabilities] = {}
    facts: dict[str, str] = {}
    """Facts detected by the agent: os, arch, kernel.version, hostname, cpu.model, boot."""
    agent_version: str = ""
    images: dict[str, int] = {}
    """Images present on the node, with their sizes in bytes."""
    ports: PortRange = USUAL_PORTS
    """Host ports for instances that request `auto`."""
    pressure: tuple[str, ...] = ()
    """Resources that the node is short of: memory, disk, inodes. Meanwhile the node has the taint `memory-pressure`,
    `disk-pressure` or `inode-pressure`, and accepts only instances that tolerate it.
    """
    usage: Resources | None = None
    """Resources in use, as last measured by the agent; absent if not measured."""
    drain: DrainStatus | None = None
    """Progress of the drain; absent if the node is not being drained."""
    maintenance: Maintenance | None = None
    """The node's turn in its pool's maintenance window; absent if it is not its turn."""
    log_sinks: dict[str, SinkHealth] = {}
    """Health of the active log sinks on this node, by name."""
    inventory: str = ""
    """Inventory that lists the node. Such a node has no agent and is Ready while the inventory lists it; empty for
    nodes with an agent.
    """
    occupied: Occupied | None = None
    """Resources in use according to the inventory; only with `inventory`."""


UNKNOWN = NodeStatus(phase=NodePhase.UNKNOWN)


class Node(Object, frozen=True, tag="node"):
    """A machine that runs instances, with an agent on it."""

    kind: ClassVar[str] = "node"
    plural: ClassVar[str] = "nodes"
    namespaced: ClassVar[bool] = False

    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=lambda: UNKNOWN)

    @property
    def node(self) -> str:
        return self.meta.name

    @property
    def taints(self) -> tuple[Taint, ...]:
        """The taints of the spec, and one for each resource that the node is short of."""
        short = self.status.pressure
        return (*self.spec.taints, *(PRESSURE_TAINTS[each] for each in short if each in PRESSURE_TAINTS))

    @property
    def drain(self) -> Drain | None:
        """The drain in effect, requested by a user or by maintenance; None if there is none."""
        turn = self.status.maintenance
        return self.spec.drain or (turn.drain if turn is not None else None)

    @property
    def closed(self) -> bool:
        """Whether the node is cordoned or drained, so that no new instances are placed on it."""
        return self.spec.cordoned or self.drain is not None

    @property
    def opened(self) -> "Node":
        """The same node without cordon, drain and maintenance."""
        spec = msgspec.structs.replace(self.spec, cordoned=False, drain=None)
        return self.changed(spec=spec, status=msgspec.structs.replace(self.status, maintenance=None))

    @property
    def allocatable(self) -> Resources:
        return self.status.capacity - self.spec.reserved
