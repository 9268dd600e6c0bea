"""Options of a task under `options.cri`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from mandor.engines.containers.images import Pull
from mandor.lib.quantity import Size


class CriOptions(Struct, frozen=True, forbid_unknown_fields=True):
    pull: Pull = "missing"
    """Pull policy of the image: at every start, if the node does not have it, or never."""
    log_size: Size = Size(10 * 1024 * 1024)
    """Size at which a log file is rotated."""
    log_files: Annotated[int, Meta(ge=1, le=100)] = 3
    """Number of rotated log files that are kept."""
    privileged: bool = False
    """Gives it all devices and capabilities of the node."""
    read_only: bool = False
    """Makes its root file system read-only; mounts stay writable."""
    cap_add: tuple[str, ...] = ()
    """Capabilities in addition to the defaults of the runtime."""
    cap_drop: tuple[str, ...] = ()
    """Capabilities that are removed; `ALL` removes all."""
    network: Literal["host"] | None = None
    """`host`: the network of the node; absent: that of the runtime."""
    runtime: str = ""
    """Name of a runtime handler, such as `runsc` or `kata`."""
    cgroup_parent: str = ""
    """Parent of its cgroups; absent: the default of the runtime."""
