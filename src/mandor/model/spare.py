"""Spare: temporary virtual machines that stand in for others during an upgrade."""

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.model.meta import Object, check_name
from mandor.model.vm_request import CPU_MOST, MEMORY_MIB_MOST

COUNT_MOST = 50
HISTORY_MOST = 32

SparePhase = Literal["Preparing", "Ready", "Releasing", "Released", "Failing", "Failed"]
VmState = Literal["Placing", "Creating", "Joining", "Ready", "Gone"]
ENDED: frozenset[SparePhase] = frozenset({"Released", "Failed"})


class SpareSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Request for spare machines. Written once by the client, except `released` and `gone`."""

    count: Annotated[int, Bounds(ge=1, le=COUNT_MOST)] = 1
    cpu: Annotated[int, Bounds(ge=1, le=CPU_MOST)]
    """Cores of each machine."""
    memory_mib: Annotated[int, Bounds(ge=1, le=MEMORY_MIB_MOST)]
    pool: str = "default"
    cluster: str
    """Cluster that the machines join as nodes; its pipeline creates them."""
    release_after: Annotated[float, Bounds(ge=0, le=90 * 86_400)] = 0.0
    """Seconds after which ready machines are removed; 0: when they are released."""
    released: str = ""
    """Reason why the machines are no longer needed; empty while they are."""
    gone: bool = False
    """Whether the machines were removed by hand, so that no pipeline removes them."""

    def __post_init__(self) -> None:
        check_name(self.pool, "pool")
        check_name(self.cluster, "cluster")


class SpareVm(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """State of one machine, written before and after each step."""

    name: str
    task: str
    """VM request that finds a host for the machine and holds resources there."""
    state: VmState = "Placing"
    since: float = 0.0
    node: str = ""
    address: str = ""
    run: str = ""
    """Id of the pipeline's run, if the pipeline has one."""
    message: str = ""


class SpareStep(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    phase: SparePhase
    at: float
    why: str = ""


class SpareStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    phase: SparePhase = "Preparing"
    since: float = 0.0
    message: str = ""
    vms: tuple[SpareVm, ...] = ()
    history: tuple[SpareStep, ...] = ()


class Spare(Object, frozen=True, tag="spare"):
    """A set of spare machines; its name is a UUID."""

    kind: ClassVar[str] = "spare"
    plural: ClassVar[str] = "spares"
    spec: SpareSpec
    status: SpareStatus = field(default_factory=SpareStatus)

    @property
    def ended(self) -> bool:
        return self.status.phase in ENDED

    def moved(self, phase: SparePhase, at: float, why: str = "") -> "Spare":
        history = (*self.status.history[-(HISTORY_MOST - 1) :], SpareStep(phase, at, why))
        status = msgspec.structs.replace(self.status, phase=phase, since=at, message=why, history=history)
        return self.changed(status=status)

    def with_vm(self, index: int, at: float, **fields: object) -> "Spare":
        vms = list(self.status.vms)
        if fields.get("state", vms[index].state) != vms[index].state:
            fields["since"] = at
        vms[index] = msgspec.structs.replace(vms[index], **fields)
        return self.changed(status=msgspec.structs.replace(self.status, vms=tuple(vms)))
