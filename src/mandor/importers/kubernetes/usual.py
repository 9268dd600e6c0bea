"""Keys that have no counterpart, and the values that say what is so anyway: those are no loss."""

from collections.abc import Mapping
from typing import Any

from mandor.importers.part import Part

Unusual = Mapping[str, tuple[str, tuple[Any, ...]]]
"""By key: why it is dropped, and with which values it is not."""
NOTHING: tuple[Any, ...] = (None, False, "", [], {})


def drop_unusual(part: Part, table: Unusual) -> None:
    for key, (why, usual) in table.items():
        if part.take(key) not in (*NOTHING, *usual):
            part.drop(key, why)
