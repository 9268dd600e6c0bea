"""What a task may say under `options.cri`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from mandor.engines.containers.images import Pull
from mandor.lib.quantity import Size


class CriOptions(Struct, frozen=True, forbid_unknown_fields=True):
    pull: Pull = "missing"
    """When the image is fetched: at every start, when it is not there, never."""
    log_size: Size = Size(10 * 1024 * 1024)
    """How large a log file grows before the next one begins."""
    log_files: Annotated[int, Meta(ge=1, le=100)] = 3
    """How many are kept."""
    privileged: bool = False
    """All of the node's devices and powers."""
    read_only: bool = False
    """Nothing can be written but to mounts."""
    cap_add: tuple[str, ...] = ()
    """Powers of root it gets beyond the usual ones."""
    cap_drop: tuple[str, ...] = ()
    """Powers of root it does not get; `ALL` for none."""
    network: Literal["host"] | None = None
    """`host`: the node's own; absent: the runtime's."""
    runtime: str = ""
    """Another runtime handler that the runtime knows, such as `runsc` or `kata`."""
    cgroup_parent: str = ""
    """Where its cgroups are made; absent: where the runtime makes them."""
