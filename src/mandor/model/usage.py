"""What machines and instances use now, as agents measure it: told with each heartbeat."""

from msgspec import Struct


class NodeUsage(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """What a machine uses now, measured by its agent; CPU and network are averages since the report before."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    network_in_bytes: int = 0
    """A second."""
    network_out_bytes: int = 0
    """A second."""


class InstanceUsage(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    cpu_milli: int = 0
    memory_bytes: int = 0
