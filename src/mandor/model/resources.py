"""Amounts of resources: what nodes have and tasks request."""

import re
from typing import Annotated

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import Cpu, Size
from mandor.lib.words import did_you_mean
from mandor.model.meta import InvalidField


class Resources(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Plain numbers for computing: `cpu_milli`, `memory_bytes`, `disk_bytes` and devices by kind."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    devices: dict[str, int] = {}

    def __add__(self, other: "Resources") -> "Resources":
        return self._with(other, 1)

    def __sub__(self, other: "Resources") -> "Resources":
        return self._with(other, -1)

    def times(self, count: int) -> "Resources":
        return Resources(
            count * self.cpu_milli,
            count * self.memory_bytes,
            count * self.disk_bytes,
            {kind: count * each for kind, each in self.devices.items()},
        )

    def at_least(self, other: "Resources") -> "Resources":
        """Return the maximum of both, amount by amount."""
        kinds = {**self.devices, **other.devices}
        return Resources(
            max(self.cpu_milli, other.cpu_milli),
            max(self.memory_bytes, other.memory_bytes),
            max(self.disk_bytes, other.disk_bytes),
            {kind: max(self.devices.get(kind, 0), other.devices.get(kind, 0)) for kind in kinds},
        )

    def fits(self, room: "Resources") -> bool:
        return (
            self.cpu_milli <= room.cpu_milli
            and self.memory_bytes <= room.memory_bytes
            and self.disk_bytes <= room.disk_bytes
            and all(count <= room.devices.get(kind, 0) for kind, count in self.devices.items())
        )

    def _with(self, other: "Resources", sign: int) -> "Resources":
        devices = dict(self.devices)
        for kind, count in other.devices.items():
            devices[kind] = devices.get(kind, 0) + sign * count
        return Resources(
            self.cpu_milli + sign * other.cpu_milli,
            self.memory_bytes + sign * other.memory_bytes,
            self.disk_bytes + sign * other.disk_bytes,
            devices,
        )

    def __str__(self) -> str:
        parts = [f"cpu {Cpu(self.cpu_milli)}", f"memory {Size(self.memory_bytes)}"]
        if self.disk_bytes:
            parts.append(f"disk {Size(self.disk_bytes)}")
        return ", ".join(parts + [f"{kind} {count}" for kind, count in self.devices.items()])


DEVICES_MOST = 65_536
"""Devices of one kind that a task can request; 128 GiB in huge pages of 2 MiB."""


NO_RESOURCES = Resources()


class Overhead(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Resources that an instance takes beside its tasks; added to its request and not enforced."""

    cpu: Cpu = Cpu(0)
    """CPU, in cores (`0.5`) or thousandths of a core (`500m`)."""
    memory: Size = Size(0)
    """Memory, for example `160Mi`."""
    disk: Size = Size(0)
    """Disk space."""

    @property
    def request(self) -> Resources:
        return Resources(int(self.cpu), int(self.memory), int(self.disk))


class Device(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A number of devices of one kind. Devices are only counted: the scheduler does not choose individual devices."""

    kind: str
    """Kind of the device as nodes report it, for example `gpu` or `fpga`."""
    vendor: str | None = None
    """Vendor of the devices. Defaults to any vendor."""
    count: Annotated[int, Bounds(ge=1, le=DEVICES_MOST)] = 1
    """Number of devices, 1 to 65536. Defaults to 1."""

    def __post_init__(self) -> None:
        device_amounts(f"{self.vendor}/{self.kind}" if self.vendor is not None else self.kind, self.count)


_DEVICE = re.compile(r"(?:(?P<vendor>[a-z0-9][a-z0-9.-]{0,62})/)?(?P<kind>[a-z0-9][a-z0-9.-]{0,62})")
NOT_DEVICES = frozenset({"cpu", "memory", "disk", "instances"})


def device_amounts(name: str, count: int) -> dict[str, int]:
    """Return the amounts that a device counts as: `nvidia/gpu` counts as `nvidia/gpu` and as `gpu`. Raises `ValueError`
    for an invalid name.
    """
    found = _DEVICE.fullmatch(name)
    if found is None or found["kind"] in NOT_DEVICES:
        raise ValueError(f"{name!r} is not a kind of device; write `gpu`, or `nvidia/gpu` with a vendor")
    return {found["kind"]: count} if found["vendor"] is None else {found["kind"]: count, name: count}


VENDORS = {"nvidia.com": "nvidia", "amd.com": "amd", "intel.com": "intel", "gpu.intel.com": "intel"}
"""Vendors of devices by their domain in Kubernetes' resource names."""
DEVICE_KINDS = frozenset({"fpga", "gpu", "nic", "npu", "tpu"})
"""Kinds of devices that a scheduler configuration can name without a vendor."""
_HUGE_PAGES = re.compile(r"hugepages-(?P<count>[1-9]\d{0,5})(?P<unit>[KMGkmg])i")
_PAGE_UNITS = {"k": 1024, "m": 1024**2, "g": 1024**3}


def device_name(name: str) -> str:
    """Return the name of a device here: `nvidia.com/gpu` is `nvidia/gpu`, `hugepages-2Mi` is `hugepages-2mi`."""
    vendor, slash, kind = name.rpartition("/")
    return f"{VENDORS.get(vendor, vendor)}{slash}{kind if slash or not _HUGE_PAGES.fullmatch(kind) else kind.lower()}"


def page_bytes(name: str) -> int | None:
    """Return the page size of `hugepages-2Mi` in bytes; None for other resources. Huge pages are devices, counted in
    pages.
    """
    found = _HUGE_PAGES.fullmatch(name)
    return None if found is None else int(found["count"]) * _PAGE_UNITS[found["unit"].lower()]


def resource_name(name: str, *at: str) -> str:
    """Return the name under which a resource is counted, for its name here or in Kubernetes. A device is named with its
    vendor, unless its kind is a common one. Raises `InvalidField` at the path `at` for a resource that does not exist.
    """
    if name in {"cpu", "memory", "disk"}:
        return name
    if name == "ephemeral-storage":
        return "disk"
    found = device_name(name)
    if page_bytes(name) is not None or name in DEVICE_KINDS or ("/" in name and _is_device(found)):
        return found
    known = {"cpu", "memory", "disk", "ephemeral-storage", "hugepages-2Mi", *DEVICE_KINDS}
    hint = did_you_mean(name, known)
    if not hint.startswith("did"):
        hint = "write cpu, memory, disk, hugepages-SIZE, or VENDOR/KIND for devices"
    raise InvalidField(f"there is no resource {name[:64]!r}", *at, hint=hint)


def _is_device(name: str) -> bool:
    try:
        return bool(device_amounts(name, 1))
    except ValueError:
        return False


class Limits(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Maximum usage of a task; unset fields are unlimited."""

    cpu: Cpu | None = None
    """Maximum CPU; the task is throttled above it."""
    memory: Size | None = None
    """Maximum memory; the task is killed above it."""
    processes: int | None = None
    """Maximum number of processes and threads."""

    def __post_init__(self) -> None:
        if self.processes is not None and self.processes < 1:
            raise ValueError("`processes` must be at least 1")


class TaskResources(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Resources that a task requests (counted by the scheduler) and its limits (enforced by the engine)."""

    cpu: Cpu | None = None
    """CPU reserved for the task, in cores (`0.5`) or thousandths of a core (`500m`). Defaults to none; scores count a
    task without it as 100m, and one with `0` as 0.
    """
    memory: Size | None = None
    """Memory reserved for the task, for example `256Mi`. Defaults to none; scores count a task without it as 200Mi, and
    one with `0` as 0.
    """
    disk: Size = Size(0)
    """Disk space reserved for the task."""
    devices: tuple[Device, ...] = ()
    """Devices reserved for the task, at most 16 kinds."""
    limits: Limits = Limits()
    """Maximum usage of the task."""

    def __post_init__(self) -> None:
        if len(self.devices) > 16:
            raise ValueError(f"{len(self.devices)} kinds of devices; at most 16 are allowed")
        if self.limits.cpu is not None and self.cpu is not None and self.limits.cpu < self.cpu:
            raise ValueError(f"limits.cpu {self.limits.cpu} is below the request {self.cpu}")
        if self.limits.memory is not None and self.memory is not None and self.limits.memory < self.memory:
            raise ValueError(f"limits.memory {self.limits.memory} is below the request {self.memory}")

    @property
    def request(self) -> Resources:
        devices = Resources()
        for each in self.devices:
            name = f"{each.vendor}/{each.kind}" if each.vendor is not None else each.kind
            devices += Resources(devices=device_amounts(name, each.count))
        return Resources(int(self.cpu or 0), int(self.memory or 0), int(self.disk), devices.devices)
