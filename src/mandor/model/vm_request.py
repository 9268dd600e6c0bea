"""VmRequest: a request to find a host for a virtual machine, and its progress."""

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.model.claim import LABELS, Claim, Dedication
from mandor.model.features import needs
from mandor.model.instance import Instance, InstanceSpec
from mandor.model.meta import InvalidField, Key, Meta, Object, check_name
from mandor.model.rule import parse_rule

MIB = 1024 * 1024
CPU_MOST = 4096
MEMORY_MIB_MOST = 64 * 1024 * 1024
HISTORY_MOST = 32
"""Number of steps kept: the first one and the latest."""

VmRequestState = Literal["Queued", "Processing", "Placed", "Confirmed", "Released", "Failed", "Cancelled"]
ENDED: frozenset[VmRequestState] = frozenset({"Released", "Failed", "Cancelled"})
"""Final states: no resources are held, and the state does not change any more."""
MOVES: dict[VmRequestState, frozenset[VmRequestState]] = {
    # Processing → Queued: it is retried later.
    "Queued": frozenset({"Processing", "Failed", "Cancelled"}),
    "Processing": frozenset({"Queued", "Placed", "Failed", "Cancelled"}),
    "Placed": frozenset({"Confirmed", "Failed", "Cancelled"}),
    "Confirmed": frozenset({"Released"}),
    "Released": frozenset(),
    "Failed": frozenset(),
    "Cancelled": frozenset(),
}


class VmRequestSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Requirements of the virtual machine, written once by the client."""

    purpose: Literal["place", "spare"] = "place"
    """`place`: a regular machine. `spare`: a machine that stands in for another during an upgrade."""
    cpu: Annotated[int, Bounds(ge=1, le=CPU_MOST)]
    """Number of cores."""
    memory_mib: Annotated[int, Bounds(ge=1, le=MEMORY_MIB_MOST)]
    pool: str = "default"
    dedicated: bool = False
    """Whether the machine needs a dedicated host."""
    dedication: Annotated[Dedication, needs("dedicated-class")] = "host"
    """Meaning of `dedicated`: `host`, a host of its own; `class`, a host that is marked as dedicated."""
    where: tuple[str, ...] = ()
    """Node rules that must all hold, for example `zone == a`."""
    vm: str = ""
    """Name of the virtual machine, if known; an inventory that lists it confirms that it exists."""
    owner: str = ""
    """Object that the request belongs to, as `spare/NAME`; empty if none."""
    place_seconds: Annotated[float, Bounds(gt=0, le=86_400)] = 300.0
    """Seconds within which a host must be found, or the request fails."""
    hold_seconds: Annotated[float, Bounds(gt=0, le=30 * 86_400)] = 3600.0
    """Seconds for which resources are held for an unconfirmed virtual machine."""

    def __post_init__(self) -> None:
        check_name(self.pool, "pool")
        if self.vm:
            check_name(self.vm, "name of a virtual machine")
        if len(self.where) > 16:
            raise InvalidField(f"{len(self.where)} rules; at most 16 are allowed", "where")
        for text in self.where:
            parse_rule(text)


class Step(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """One change of a request's state."""

    state: VmRequestState
    at: float
    why: str = ""


class VmRequestStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Progress of the request, written before and after each step."""

    state: VmRequestState = "Queued"
    since: float = 0.0
    """Unix time at which the state started."""
    attempts: int = 0
    """Number of failed attempts."""
    node: str = ""
    """Name of the host."""
    address: str = ""
    """Address of the host."""
    error: str = ""
    """Human-readable error of the request, or of the last attempt."""
    reason: str = ""
    """Machine-readable reason, one word: NoNode, Timeout, Stuck, NodeGone, Error."""
    counted: bool = False
    """Whether the inventory already counts the confirmed virtual machine, so that no resources are held for it."""
    history: tuple[Step, ...] = ()


class VmRequest(Object, frozen=True, tag="task"):
    """A request to place a virtual machine; its name is a UUID."""

    kind: ClassVar[str] = "task"
    plural: ClassVar[str] = "tasks"

    spec: VmRequestSpec
    status: VmRequestStatus = field(default_factory=VmRequestStatus)

    @property
    def node(self) -> str:
        return self.status.node

    @property
    def ended(self) -> bool:
        return self.status.state in ENDED

    @property
    def holds(self) -> bool:
        """Whether resources are held for the request, or about to be."""
        return self.status.state in {"Processing", "Placed", "Confirmed"} and not self.status.counted

    @property
    def claim(self) -> Instance:
        """The instance that will hold resources for the request, not placed yet."""
        spec = self.spec
        claim = Claim(
            task=self.meta.name,
            cpu_milli=spec.cpu * 1000,
            memory_bytes=spec.memory_mib * MIB,
            pool=spec.pool,
            dedicated=spec.dedicated,
            dedication=spec.dedication,
            where=spec.where,
        )
        return Instance(
            meta=Meta(name=claim.name, namespace=self.meta.namespace, labels=LABELS),
            spec=InstanceSpec(workload=claim.owner, release=claim.size, index=0, claim=claim),
        )

    @property
    def claim_key(self) -> Key:
        return Key(Instance.kind, self.meta.namespace, f"vm-{self.meta.name}")

    def moved(self, state: VmRequestState, at: float, why: str = "", **fields: object) -> "VmRequest":
        """Return the request in its next state; raises `ValueError` if the change is not allowed."""
        if state not in MOVES[self.status.state]:
            raise ValueError(f"task {self.meta.name} cannot change its state from {self.status.state} to {state}")
        before = self.status.history
        history = (*before[:1], *before[1:][-(HISTORY_MOST - 2) :], Step(state, at, why))
        status = msgspec.structs.replace(self.status, state=state, since=at, history=history, **fields)
        return self.changed(status=status)
