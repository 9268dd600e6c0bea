"""What a task may say under `options.process`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from mandor.engines.base import Launch
from mandor.errors import Invalid
from mandor.lib.quantity import Size
from mandor.model.codec import from_plain


class ProcessOptions(Struct, frozen=True, forbid_unknown_fields=True):
    log_size: Size = Size(10 * 1024 * 1024)
    """How large a log file grows before the next one begins."""
    log_files: Annotated[int, Meta(ge=1, le=100)] = 3
    """How many are kept, the one being written included."""

    def __post_init__(self) -> None:
        if self.log_size < 64 * 1024:
            raise ValueError("`log_size` is at least 64Ki")


def read_options(launch: Launch) -> ProcessOptions:
    try:
        return from_plain(dict(launch.options), ProcessOptions)
    except msgspec.ValidationError as error:
        raise Invalid(f"options.process: {error}") from None
