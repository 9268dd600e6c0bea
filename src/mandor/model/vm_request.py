"""VmRequest: somebody wants a machine for a virtual machine; what was done about it, step by step."""

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.model.claim import LABELS, Claim
from mandor.model.instance import Instance, InstanceSpec
from mandor.model.meta import Key, Meta, Misfit, Object, check_name
from mandor.model.rule import parse_rule

MIB = 1024 * 1024
CPU_MOST = 4096
MEMORY_MIB_MOST = 64 * 1024 * 1024
HISTORY_MOST = 32
"""So many steps are kept: the first one, and the latest."""

VmRequestState = Literal["Queued", "Processing", "Placed", "Confirmed", "Released", "Failed", "Cancelled"]
ENDED: frozenset[VmRequestState] = frozenset({"Released", "Failed", "Cancelled"})
"""It holds nothing any more, and nothing more happens to it."""
MOVES: dict[VmRequestState, frozenset[VmRequestState]] = {
    # Processing → Queued: it is tried again later.
    "Queued": frozenset({"Processing", "Failed", "Cancelled"}),
    "Processing": frozenset({"Queued", "Placed", "Failed", "Cancelled"}),
    "Placed": frozenset({"Confirmed", "Failed", "Cancelled"}),
    "Confirmed": frozenset({"Released"}),
    "Released": frozenset(),
    "Failed": frozenset(),
    "Cancelled": frozenset(),
}


class VmRequestSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Written once, by whoever asks."""

    purpose: Literal["place", "spare"] = "place"
    """`spare`: the machine stands in for another during an upgrade."""
    cpu: Annotated[int, Bounds(ge=1, le=CPU_MOST)]
    """Cores."""
    memory_mib: Annotated[int, Bounds(ge=1, le=MEMORY_MIB_MOST)]
    pool: str = "default"
    dedicated: bool = False
    """It wants a machine for itself alone."""
    where: tuple[str, ...] = ()
    """Only machines that keep all these rules: `zone == a`."""
    vm: str = ""
    """The name of the virtual machine, if it is known already: an inventory that names it shows that it is there."""
    owner: str = ""
    """The object that it belongs to, as `spare/NAME`; empty: it stands for itself."""
    place_seconds: Annotated[float, Bounds(gt=0, le=86_400)] = 300.0
    """It fails if it has found no machine by then."""
    hold_seconds: Annotated[float, Bounds(gt=0, le=30 * 86_400)] = 3600.0
    """The room is held so long for a virtual machine that nobody confirms."""

    def __post_init__(self) -> None:
        check_name(self.pool, "pool")
        if self.vm:
            check_name(self.vm, "name of a virtual machine")
        if len(self.where) > 16:
            raise Misfit(f"{len(self.where)} rules; at most 16 are allowed", "where")
        for text in self.where:
            parse_rule(text)


class Step(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """One change of a task's state."""

    state: VmRequestState
    at: float
    why: str = ""


class VmRequestStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Written before and after each step."""

    state: VmRequestState = "Queued"
    since: float = 0.0
    """When this state began."""
    attempts: int = 0
    """So many tries have failed."""
    node: str = ""
    """The machine."""
    address: str = ""
    """Where it is reached."""
    error: str = ""
    """For people: why it failed, or why the last try did."""
    reason: str = ""
    """The same as one word for programs: NoNode, Timeout, Stuck, NodeGone, Error."""
    counted: bool = False
    """Of a confirmed one: the inventory shows its virtual machine by now, and nothing else is held for it."""
    history: tuple[Step, ...] = ()


class VmRequest(Object, frozen=True, tag="task"):
    """Its name is a UUID."""

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
        """Room is held for it, or is about to be."""
        return self.status.state in {"Processing", "Placed", "Confirmed"} and not self.status.counted

    @property
    def claim(self) -> Instance:
        """What holds room for it, before it has any."""
        spec = self.spec
        claim = Claim(
            task=self.meta.name,
            cpu_milli=spec.cpu * 1000,
            memory_bytes=spec.memory_mib * MIB,
            pool=spec.pool,
            dedicated=spec.dedicated,
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
        """The same task one step on; a `ValueError` for a step that does not exist."""
        if state not in MOVES[self.status.state]:
            raise ValueError(f"task {self.meta.name} cannot go from {self.status.state} to {state}")
        before = self.status.history
        history = (*before[:1], *before[1:][-(HISTORY_MOST - 2) :], Step(state, at, why))
        status = msgspec.structs.replace(self.status, state=state, since=at, history=history, **fields)
        return self.changed(status=status)
