"""Options of a task under `options.process`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from mandor.lib.quantity import Size


class ProcessOptions(Struct, frozen=True, forbid_unknown_fields=True):
    log_size: Size = Size(10 * 1024 * 1024)
    """Size at which a log file is rotated."""
    log_files: Annotated[int, Meta(ge=1, le=100)] = 3
    """Number of log files that are kept, including the current one."""
    confine: bool = False
    """Whether the task is confined as at the level `restricted`, whatever the level of its namespace: own namespaces,
    no capabilities, not root. A node that cannot confine it refuses it. Defaults to false."""

    def __post_init__(self) -> None:
        if self.log_size < 64 * 1024:
            raise ValueError("`log_size` is at least 64Ki")
