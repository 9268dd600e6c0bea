"""Instance: one copy of a group, on at most one node, with a phase."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Struct, field

from mandor.model.claim import Claim
from mandor.model.features import needs
from mandor.model.group import FLAT
from mandor.model.image import Digest
from mandor.model.meta import Key, Object
from mandor.model.phase import Phase, may_move
from mandor.model.record import Namespace
from mandor.model.volume import GroupVolume
from mandor.model.workload import Release, Workload


class StopOrder(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """An order to stop an instance, set once by its controller. The agent stops the instance and reports its end."""

    reason: str
    grace_seconds: float | None = None
    """Seconds between the stop signal and the kill; absent: the tasks' own grace periods."""
    at: float = 0.0


class Move(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A request to move an instance: a replacement starts on another node and takes over when it is ready."""

    reason: str
    to: str = ""
    """Target node; empty means any node other than the current one."""
    at: float = 0.0
    first: Literal["start", "stop"] = "start"
    """Order of the move. `start`: the replacement starts before this instance stops; `stop`: this instance stops first.
    """
    by: str = ""
    """Name of the rebalance that requested the move; empty for other reasons."""


class InstanceSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Specification of an instance. The scheduler writes `node`, `variant`, `volumes`, `ports` and `relaxed`, once; the
    secret signal controller writes `secrets`; the workload's controller writes the other fields.
    """

    workload: str
    group: str = FLAT
    release: str
    index: int
    node: str = ""
    stop: StopOrder | None = None
    attempt: int = 0
    """Number of earlier instances with this index that failed."""
    move: Move | None = None
    """Request to move to another node; set by the drain, restore or rebalance controller and cleared by the workload
    controller.
    """
    instead_of: str = ""
    """Uid of the instance that this one replaces."""
    pin: str = ""
    """The only node on which the instance may be placed; empty for any node."""
    waits: tuple[str, ...] = ()
    """Dependencies that must be met before the instance is placed."""
    avoid: tuple[str, ...] = ()
    """Nodes on which earlier instances failed; the scheduler tries other nodes first."""
    volumes: tuple[str, ...] = ()
    """Names of the volume objects in use, all on the instance's node; written together with `node`."""
    ports: dict[str, int] | None = None
    """Host ports chosen for the instance, by port name; written together with `node`. None if the group requests no
    host ports.
    """
    relaxed: tuple[str, ...] = ()
    """`should` rules that were relaxed to place the instance, in order."""
    variant: int = 0
    """Form of the group that was placed: 0 is the main form, 1 the first of `alternatives`."""
    claim: Claim | None = None
    """Set if the instance only holds resources for a virtual machine that another system creates: no agent runs it, no
    workload counts it, and only its VM request deletes it.
    """
    secrets: Annotated[dict[str, str] | None, needs("secret-changes")] = None
    """Content ids of the secrets in live files (`on_change: signal`), by name, written after a change; None if no
    secret has changed since the release was made.
    """

    @property
    def home(self) -> str:
        """The node of a daemon's instance, which is deleted together with the node; empty for other types."""
        return "" if self.instead_of else self.pin  # a pinned replacement is not a daemon: it was sent there by a move


class TaskStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Status of one task in a group of several tasks."""

    name: str
    phase: Phase
    restarts: int = 0
    exit_code: int | None = None
    reason: str = ""


class PortStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One port of an instance on its node."""

    name: str
    port: int
    """Port on which the task listens, on the instance's own address."""
    host: int | None = None
    """Host port that forwards to the task; None if there is none."""
    protocol: Literal["tcp", "udp"] = "tcp"


class InstanceStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Status of an instance: written by the scheduler before placement, then by the node's agent; `Lost` is set by the
    node controller.
    """

    phase: Phase
    reason: str = ""
    """Machine-readable reason, one word: OOMKilled, Error, Completed, Unschedulable, NodeLost, CrashLoop …"""
    message: str = ""
    """Human-readable description."""
    ready: bool = False
    restarts: int = 0
    exit_code: int | None = None
    engine: str = ""
    address: str = ""
    """IP address of the instance; empty if it has none or shares the node's."""
    network: Annotated[str, needs("networks")] = ""
    """Network of the cluster in which `address` is reached from every node; empty: it is reached on its node only."""
    address6: Annotated[str, needs("networks")] = ""
    """IPv6 address in that network; empty: it has none."""
    host: str = ""
    """Address of the node, where the host ports are; set only together with `ports`."""
    zone: Annotated[str, needs("services")] = ""
    """Zone of the node, by its label `zone`; set only together with `ports`."""
    ports: tuple[PortStatus, ...] = ()
    aliases: Annotated[tuple[str, ...], needs("aliases")] = ()
    """Further names under which other instances find it."""
    nominated: str = ""
    """Node on which room is being made by preemption, while the instance is Pending."""
    since: float = 0.0
    """Unix time at which the current phase started."""
    started_at: float = 0.0
    tasks: tuple[TaskStatus, ...] = ()
    """Status of each task; only for groups of several tasks."""
    images: Annotated[dict[str, Digest] | None, needs("image-digests")] = None
    """Digests of the images that the node pulled, by image reference in the template; None if it pulled none or all
    were pinned.
    """


REFUSED, PORT_TAKEN = "Refused", "PortTaken"
"""Reasons of an instance that its node rejected before starting it; the instance is placed again."""

UNSCHEDULABLE = "Unschedulable"
"""Reason of an instance that fits on no node at present."""

EVICTED = "Evicted"
"""Reason of an instance that its node stopped because of a resource shortage; it is placed again on another node."""

PENDING = InstanceStatus(phase=Phase.PENDING)
_RESERVED = Phase.RESERVED  # Python 3.11 resolves enum members with a function call each time.


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
    def start_keys(self) -> tuple[Key, ...]:
        """Keys of the objects that the node needs to start the instance; empty once it has started or if it will never
        start.
        """
        if self.status.phase is not Phase.RESERVED or self.spec.stop is not None or self.spec.claim is not None:
            return ()
        namespace = self.meta.namespace
        return (
            Key(Release.kind, namespace, self.spec.release),
            Key(Workload.kind, namespace, self.spec.workload),
            Key(Namespace.kind, "", namespace),
        )

    def stopping(self, reason: str, *, at: float = 0.0, grace_seconds: float | None = None) -> "Instance":
        """Return the instance with a stop order; an existing order is kept."""
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
        """Return the instance with a new status; raises `ValueError` if the phase change is not allowed."""
        if not may_move(self.status.phase, status.phase):
            raise ValueError(f"{self.meta.name} cannot change its phase from {self.status.phase} to {status.phase}")
        return self.changed(status=status)


def instance_prefix(workload: str, group: str) -> str:
    return workload if group == FLAT else f"{workload}-{group}"


def instance_name(workload: str, group: str, index: int) -> str:
    return f"{instance_prefix(workload, group)}-{index}"


def daemon_name(workload: str, group: str, node: str) -> str:
    return f"{instance_prefix(workload, group)}-{node}"


def volume_names(volumes: Mapping[str, GroupVolume], workload: str, group: str, instance: str) -> dict[str, str]:
    """Map the group's names of `local` volumes to the names of the instance's volume objects."""
    common = instance_prefix(workload, group)
    return {name: each.object_name(name, common, instance) for name, each in volumes.items() if each.type == "local"}
