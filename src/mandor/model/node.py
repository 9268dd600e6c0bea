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
"""The fact that says how many seconds a node's clock is ahead of the servers'; absent: less than a few."""
RENEWS = "credential.renews"
"""The fact that says `yes` where the agent can renew its credential; absent: it is too old for that."""


class NodePhase(StrEnum):
    """What the node controller makes of a node's heartbeats."""

    UNKNOWN = "Unknown"
    READY = "Ready"
    SUSPECT = "Suspect"
    """Silent for a while: nothing new goes there."""
    DOWN = "Down"
    """Silent for too long: its instances are Lost."""


class Taint(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Keeps away from a node what does not tolerate it; text: `KEY=VALUE:EFFECT`, `KEY:EFFECT`."""

    key: str
    value: str = ""
    effect: Effect = "NoSchedule"
    """`PreferNoSchedule`: elsewhere rather than there; `NoExecute`: what is there has to leave, too."""
    since: float = 0.0
    """When it was set, with NoExecute; the API writes it."""

    def __post_init__(self) -> None:
        check_labels({self.key: self.value})

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"

    @classmethod
    def parse(cls, text: str) -> "Taint":
        named, colon, effect = text.rpartition(":")
        key, _, value = named.partition("=")
        if not colon or effect not in get_args(Effect):
            raise ValueError(f"{text!r} is no taint; write KEY=VALUE:EFFECT, with one of {', '.join(get_args(Effect))}")
        return cls(key, value, cast(Effect, effect))


class Drain(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Nothing new goes to the node, and everything that is there goes elsewhere, within its budgets."""

    deadline: Seconds | None = None
    """So long batches may run on to their end; absent: as long as they like."""
    force: bool = False
    """At the deadline (at once, if there is none) whatever is left is stopped, and no budget is asked."""
    since: float = 0.0
    """When it was ordered; the API writes it."""


class Renewal(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """An order to the agent: the node is to have another credential."""

    since: float
    overlap_seconds: float = 3600.0
    """So long the one it has now is good beside the new one."""


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
    maintained: float = 0.0
    """It needs no turn (any more) in the maintenance window of its pool that opened at this time."""
    renewal: Annotated[Renewal | None, needs("credential-renewal")] = None
    """Its agent is to renew its credential; absent: it has."""

    def __post_init__(self) -> None:
        check_name(self.pool, "pool")
        if len(self.taints) > TAINTS_MOST:
            raise ValueError(f"{len(self.taints)} taints; at most {TAINTS_MOST} are allowed")
        if len({(each.key, each.effect) for each in self.taints}) < len(self.taints):
            raise ValueError("two taints have the same key and the same effect")


def stamped(before: NodeSpec, after: NodeSpec, now: float) -> NodeSpec:
    """With the times of what is new in it: nobody else says when something was ordered."""
    known = {str(each): each.since for each in before.taints}
    drives = {each: known.get(str(each), now) for each in after.taints if each.effect == "NoExecute"}
    taints = tuple(msgspec.structs.replace(each, since=drives.get(each, 0.0)) for each in after.taints)
    drain = after.drain
    if drain is not None:
        drain = msgspec.structs.replace(drain, since=before.drain.since if before.drain is not None else now)
    return msgspec.structs.replace(after, taints=taints, drain=drain)


MAPPED_USERS = "mapped-users"
"""Extra of an engine whose containers know 65,536 users: a namespace's user has another number in them."""


class Capabilities(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
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

    def runs(self, images: Iterable[bool], needs: Set[str]) -> bool:
        """Tasks of these kinds (True: an image, False: a command of the node itself), with all that they need: images
        want an engine that runs images, commands one that runs the node's own programs; some do both."""
        both = not self.images or "commands" in self.extras
        return needs <= self.extras and all(self.images if image else both for image in images)


ENGINE_FACT = "engine."
"""So begin the facts about engines."""


def engine_facts(engines: Mapping[str, Capabilities]) -> dict[str, str]:
    """What rules can say of the engines of a node: `engine.docker.version version >= 24`,
    `engine.incus.machines == true`."""
    found: dict[str, str] = {}
    for name, each in engines.items():
        known = {"up": each.up, "images": each.images}
        known |= dict.fromkeys((*each.extras, *(f"limits.{limit}" for limit in each.limits)), True)
        found |= {f"{ENGINE_FACT}{name}.{what}": str(answer).lower() for what, answer in known.items()}
        if each.version:
            found[f"{ENGINE_FACT}{name}.version"] = each.version
    return found


class PortRange(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
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


DrainPhase = Literal["Draining", "Waiting", "Late", "Drained"]


class DrainStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
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


class Maintenance(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """The maintenance window of its pool has come to it: it is emptied, kept empty for a while, and given back."""

    window: float
    """When that opened."""
    drain: Drain
    """How it is emptied."""
    empty_since: float = 0.0
    """0: it is not empty yet."""
    until: float = 0.0
    """When it takes work again, at the latest."""


class Occupied(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """What is in use on a machine of an inventory, by virtual machines that are not Mandor's."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    machines: int = 0
    """How many virtual machines."""


class NodeStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Written by the node's agent, except `phase`, `reason`, `since`, `drain` and `maintenance`: the controllers'."""

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
    pressure: tuple[str, ...] = ()
    """What it is short of: memory, disk, inodes. It takes nothing new that is not important then."""
    usage: Resources | None = None
    """What is really used, as the agent last measured it; absent: not measured."""
    drain: DrainStatus | None = None
    """How far its drain is; absent: it is not drained."""
    maintenance: Maintenance | None = None
    """Its turn in the maintenance window of its pool; absent: it is not its turn."""
    log_sinks: dict[str, SinkHealth] = {}
    """How log sinks do there, by name; those that are not active are absent."""
    inventory: str = ""
    """The inventory that it comes from: it has no agent, and is Ready while that lists it; empty: it has one."""
    occupied: Occupied | None = None
    """What the inventory says is in use there; only with `inventory`."""


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
    def drain(self) -> Drain | None:
        """How it is to be emptied, as somebody ordered or for its maintenance; None: it is not."""
        turn = self.status.maintenance
        return self.spec.drain or (turn.drain if turn is not None else None)

    @property
    def closed(self) -> bool:
        """Nothing new goes there, because somebody said so."""
        return self.spec.cordoned or self.drain is not None

    @property
    def opened(self) -> "Node":
        """The same node as it would be if nobody had."""
        spec = msgspec.structs.replace(self.spec, cordoned=False, drain=None)
        return self.changed(spec=spec, status=msgspec.structs.replace(self.status, maintenance=None))

    @property
    def allocatable(self) -> Resources:
        return self.status.capacity - self.spec.reserved
