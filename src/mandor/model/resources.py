"""Amounts of what a node has and a task asks for."""

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
    limits: Limits = Limits()
    """The most it may use."""

    def __post_init__(self) -> None:
        if self.limits.cpu is not None and self.limits.cpu < self.cpu:
            raise ValueError(f"limits.cpu {self.limits.cpu} is below the request {self.cpu}")
        if self.limits.memory is not None and self.limits.memory < self.memory:
            raise ValueError(f"limits.memory {self.limits.memory} is below the request {self.memory}")

    @property
    def request(self) -> Resources:
        return Resources(int(self.cpu), int(self.memory), int(self.disk))
