"""Instance: one copy of a group, on at most one node, with a phase."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Struct, field

from mandor.model.claim import Claim
from mandor.model.features import needs
from mandor.model.image import Digest
from mandor.model.meta import Key, Object
from mandor.model.phase import Phase, may_move
from mandor.model.record import Namespace
from mandor.model.volume import GroupVolume
from mandor.model.workload import FLAT, Release, Workload


class StopOrder(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Set once by its controller; the agent stops the instance and reports it over."""

    reason: str
    grace_seconds: float | None = None
    """Absent: as its tasks say."""
    at: float = 0.0


class Move(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Another one is started where it is sent, and takes its place when it serves."""

    reason: str
    to: str = ""
    """The node; empty: any other, for it has to leave the one it is on."""
    at: float = 0.0
    first: Literal["start", "stop"] = "start"
    """`stop`: another one can only begin when this one has ended."""
    by: str = ""
    """The rebalance that sends it; empty: another reason."""


class InstanceSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """`node`, `variant`, `volumes`, `ports` and `relaxed` are written by the scheduler, once; `secrets` by the
    secret signal controller, `stop` and the rest by the workload's controller."""

    workload: str
    group: str = FLAT
    release: str
    index: int
    node: str = ""
    stop: StopOrder | None = None
    attempt: int = 0
    """How many earlier copies of this index failed."""
    move: Move | None = None
    """It is to go elsewhere; set by whoever knows a better place, called off by its controller."""
    instead_of: str = ""
    """The uid of the one whose place it is to take."""
    pin: str = ""
    """The only node it may go to; empty: any."""
    waits: tuple[str, ...] = ()
    """What it waits for before it may be placed: what its group depends on."""
    avoid: tuple[str, ...] = ()
    """Nodes where earlier copies failed: elsewhere first."""
    volumes: tuple[str, ...] = ()
    """The volume objects it uses, all on its node; written with it."""
    ports: dict[str, int] | None = None
    """The node's ports that were chosen for it, by the names its group gives them; written with it. None: it asks for
    none, and takes no room for them here."""
    relaxed: tuple[str, ...] = ()
    """The `should` rules that were given up to place it, in the order they were."""
    variant: int = 0
    """The form of its group that it was placed in: 0 is the main one, 1 the first of its `alternatives`."""
    claim: Claim | None = None
    """It only holds room, for a virtual machine that somebody else makes: no agent runs it, no workload counts it, and
    nobody but its task ends it. None: it is run."""
    secrets: Annotated[dict[str, str] | None, needs("secret-changes")] = None
    """Content ids of secrets that its files are to have (`on_change: signal`), by name, written after a change; None:
    none has changed since its release was made."""

    @property
    def home(self) -> str:
        """The node it belongs to, and ends with: a daemon's. Empty: it is no daemon."""
        return "" if self.instead_of else self.pin  # whoever is sent to a certain node takes somebody's place there


class TaskStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One task of a group of several."""

    name: str
    phase: Phase
    restarts: int = 0
    exit_code: int | None = None
    reason: str = ""


class PortStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One port of an instance, as it is on its node."""

    name: str
    port: int
    """Where the task listens, on its own address."""
    host: int | None = None
    """The node's port that leads to it; None: none does."""
    protocol: Literal["tcp", "udp"] = "tcp"


class InstanceStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Written by the node's agent; before there is one, by the scheduler; Lost by the node controller."""

    phase: Phase
    reason: str = ""
    """One word for programs: OOMKilled, Error, Completed, Unschedulable, NodeLost, CrashLoop …"""
    message: str = ""
    """A sentence for people."""
    ready: bool = False
    restarts: int = 0
    exit_code: int | None = None
    engine: str = ""
    address: str = ""
    """Its own; empty: it has none, or shares its node's."""
    host: str = ""
    """The address of its node, where its ports are; only with `ports`."""
    ports: tuple[PortStatus, ...] = ()
    nominated: str = ""
    """The node where there will be room for it; while it is Pending."""
    since: float = 0.0
    """When this phase began."""
    started_at: float = 0.0
    tasks: tuple[TaskStatus, ...] = ()
    """Only for groups of several tasks."""
    images: Annotated[dict[str, Digest] | None, needs("image-digests")] = None
    """Digests of the images that its node pulled for it, by the references in its template; None: it pulled none, or
    they were pinned already."""


REFUSED, PORT_TAKEN = "Refused", "PortTaken"
"""Reasons of a node that did not take an instance, which then never began: it is placed again."""

UNSCHEDULABLE = "Unschedulable"
"""Reason of an instance that no node can take now."""

EVICTED = "Evicted"
"""Reason of a node that was short of something and ended an instance for it: it is placed again, elsewhere."""

PENDING = InstanceStatus(phase=Phase.PENDING)
_RESERVED = Phase.RESERVED  # Python 3.11 looks a member of an enum up in a function of its own each time.


class Instance(Object, frozen=True, tag="instance"):
    """One copy of a group of a workload, on at most one node."""

    kind: ClassVar[str] = "instance"
    plural: ClassVar[str] = "instances"

    spec: InstanceSpec
    status: InstanceStatus = field(default_factory=lambda: PENDING)

    @property
    def node(self) -> str:
        return self.spec.node

    @property
    def phase(self) -> Phase:
        return self.status.phase

    @property
    def supplies(self) -> tuple[Key, ...]:
        """What its node has to read to begin it; none once it has begun, or if it never will."""
        if self.status.phase is not Phase.RESERVED or self.spec.stop is not None or self.spec.claim is not None:
            return ()
        namespace = self.meta.namespace
        return (
            Key(Release.kind, namespace, self.spec.release),
            Key(Workload.kind, namespace, self.spec.workload),
            Key(Namespace.kind, "", namespace),
        )

    def stopping(self, reason: str, *, at: float = 0.0, grace_seconds: float | None = None) -> "Instance":
        """The same instance, told to stop; a second order changes nothing."""
        if self.spec.stop is not None:
            return self
        order = StopOrder(reason=reason, grace_seconds=grace_seconds, at=at)
        return self.changed(spec=msgspec.structs.replace(self.spec, stop=order))

    def bound(
        self,
        node: str,
        *,
        at: float,
        relaxed: tuple[str, ...] = (),
        volumes: tuple[str, ...] = (),
        variant: int = 0,
        ports: dict[str, int] | None = None,
    ) -> "Instance":
        spec = msgspec.structs.replace(
            self.spec, node=node, relaxed=relaxed, volumes=volumes, variant=variant, ports=ports
        )
        return Instance(meta=self.meta, spec=spec, status=InstanceStatus(phase=_RESERVED, since=at))

    def reported(self, status: InstanceStatus) -> "Instance":
        """The same instance with another status; a `ValueError` for a move that does not exist."""
        if not may_move(self.status.phase, status.phase):
            raise ValueError(f"{self.meta.name} cannot go from {self.status.phase} to {status.phase}")
        return self.changed(status=status)


def instance_prefix(workload: str, group: str) -> str:
    return workload if group == FLAT else f"{workload}-{group}"


def instance_name(workload: str, group: str, index: int) -> str:
    return f"{instance_prefix(workload, group)}-{index}"


def daemon_name(workload: str, group: str, node: str) -> str:
    return f"{instance_prefix(workload, group)}-{node}"


def volume_names(volumes: Mapping[str, GroupVolume], workload: str, group: str, instance: str) -> dict[str, str]:
    """The volume objects of an instance, by the names its group gives them: of `local` ones, for others have none."""
    common = instance_prefix(workload, group)
    return {name: each.object_name(name, common, instance) for name, each in volumes.items() if each.type == "local"}
