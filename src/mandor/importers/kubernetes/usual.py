"""Keys without a counterpart, and their values that equal the default and are no loss."""

from collections.abc import Mapping
from typing import Any

from mandor.importers.part import Part

Unusual = Mapping[str, tuple[str, tuple[Any, ...]]]
"""By key: the reason why it is dropped, and the values with which it is ignored."""
NOTHING: tuple[Any, ...] = (None, False, "", [], {})


def drop_unusual(part: Part, table: Unusual) -> None:
    for key, (why, usual) in table.items():
        if part.take(key) not in (*NOTHING, *usual):
            part.drop(key, why)
