"""Finds what others plugged in, by Python entry point."""

from importlib.metadata import entry_points
from typing import Any

from mandor.lib.words import did_you_mean


def names(group: str) -> list[str]:
    return sorted({point.name for point in entry_points(group=group)})


def load(group: str, name: str) -> Any:
    """The object registered under `name`; a `LookupError` says what there is instead."""
    for point in entry_points(group=group):
        if point.name == name:
            return point.load()
    raise LookupError(f"nothing called {name!r} is registered as {group}; {did_you_mean(name, names(group))}")
