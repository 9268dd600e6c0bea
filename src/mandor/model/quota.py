"""Quota: limits on the resources used by the instances of a namespace."""

from typing import Annotated, ClassVar

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.lib.quantity import Cpu, Size
from mandor.model.meta import Object, check_name
from mandor.model.resources import Resources, device_amounts

Many = Annotated[int, Bounds(ge=0, le=1_000_000_000)]


class QuotaAmounts(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    cpu: Cpu | None = None
    """Requested CPU."""
    memory: Size | None = None
    """Requested memory."""
    disk: Size | None = None
    """Requested disk space."""
    devices: dict[str, Many] = {}
    """Requested devices by kind, `gpu`, or by vendor and kind, `nvidia/gpu`."""
    instances: Many | None = None
    """Number of instances."""

    def __post_init__(self) -> None:
        for kind in self.devices:
            device_amounts(kind, 0)

    @property
    def amounts(self) -> dict[str, int]:
        """Limits by resource; resources without a limit are absent."""
        named = {"cpu": self.cpu, "memory": self.memory, "disk": self.disk, "instances": self.instances}
        return {name: int(each) for name, each in {**named, **self.devices}.items() if each is not None}


class QuotaSpec(QuotaAmounts, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Limits on the sum of all placed instances; further instances stay pending."""

    priority_class: str | None = None
    """Priority class whose workloads are counted and limited. Defaults to all workloads of the namespace."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.amounts:
            raise ValueError("a quota must limit at least one of cpu, memory, disk, devices and instances")
        if self.priority_class is not None:
            check_name(self.priority_class, "priority class")


class QuotaStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Usage of a quota, written by the quota controller with a short delay."""

    used: QuotaAmounts = QuotaAmounts()
    """Current usage of the limited resources."""


class Quota(Object, frozen=True, tag="quota"):
    """Limits on what the instances of a namespace use together."""

    kind: ClassVar[str] = "quota"
    plural: ClassVar[str] = "quotas"
    spec: QuotaSpec
    status: QuotaStatus = field(default_factory=QuotaStatus)


def used_of(limits: QuotaAmounts, used: Resources, instances: int) -> QuotaAmounts:
    """Return the usage of the limited resources."""
    return QuotaAmounts(
        cpu=Cpu(used.cpu_milli) if limits.cpu is not None else None,
        memory=Size(used.memory_bytes) if limits.memory is not None else None,
        disk=Size(used.disk_bytes) if limits.disk is not None else None,
        devices={kind: used.devices.get(kind, 0) for kind in limits.devices},
        instances=instances if limits.instances is not None else None,
    )
