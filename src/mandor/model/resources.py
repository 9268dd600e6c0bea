"""Amounts of what a node has and a task asks for."""

import re
from typing import Annotated

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import Cpu, Size


class Resources(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Plain numbers, for computing: `cpu_milli`, `memory_bytes`, `disk_bytes`, devices by kind."""

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
        """The larger of both, amount by amount."""
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


class Device(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Devices of one kind; nodes say how many they have. They are counted: which of them a task gets is not decided."""

    kind: str
    """`gpu`, `fpga` …, as nodes call it."""
    vendor: str | None = None
    """Only of this vendor."""
    count: Annotated[int, Bounds(ge=1, le=1024)] = 1
    """How many."""

    def __post_init__(self) -> None:
        device_amounts(f"{self.vendor}/{self.kind}" if self.vendor is not None else self.kind, self.count)


_DEVICE = re.compile(r"(?:(?P<vendor>[a-z0-9][a-z0-9.-]{0,62})/)?(?P<kind>[a-z0-9][a-z0-9.-]{0,62})")
NOT_DEVICES = frozenset({"cpu", "memory", "disk", "instances"})


def device_amounts(name: str, count: int) -> dict[str, int]:
    """`nvidia/gpu` counts as one of that vendor's and as a gpu; a `ValueError` for what is no kind of device."""
    found = _DEVICE.fullmatch(name)
    if found is None or found["kind"] in NOT_DEVICES:
        raise ValueError(f"{name!r} is not a kind of device; write `gpu` or, with the vendor, `nvidia/gpu`")
    return {found["kind"]: count} if found["vendor"] is None else {found["kind"]: count, name: count}


class Limits(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The most a task may use; an absent one is no limit."""

    cpu: Cpu | None = None
    """Cores; it is slowed down to that."""
    memory: Size | None = None
    """It is killed above that."""
    processes: int | None = None
    """Processes and threads."""

    def __post_init__(self) -> None:
        if self.processes is not None and self.processes < 1:
            raise ValueError("`processes` is 1 or more")


class TaskResources(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """What a task asks for (the scheduler counts it) and the most it may use (the engine enforces it)."""

    cpu: Cpu = Cpu(0)
    """Cores kept for it."""
    memory: Size = Size(0)
    """Memory kept for it."""
    disk: Size = Size(0)
    """Disk kept for it."""
    devices: tuple[Device, ...] = ()
    """Devices kept for it."""
    limits: Limits = Limits()
    """The most it may use."""

    def __post_init__(self) -> None:
        if len(self.devices) > 16:
            raise ValueError("a task asks for at most 16 kinds of devices")
        if self.limits.cpu is not None and self.limits.cpu < self.cpu:
            raise ValueError(f"limits.cpu {self.limits.cpu} is below the request {self.cpu}")
        if self.limits.memory is not None and self.limits.memory < self.memory:
            raise ValueError(f"limits.memory {self.limits.memory} is below the request {self.memory}")

    @property
    def request(self) -> Resources:
        devices = Resources()
        for each in self.devices:
            name = f"{each.vendor}/{each.kind}" if each.vendor is not None else each.kind
            devices += Resources(devices=device_amounts(name, each.count))
        return Resources(int(self.cpu), int(self.memory), int(self.disk), devices.devices)
