"""Loads plugins by Python entry point."""

from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from mandor.lib.words import did_you_mean


def names(group: str) -> list[str]:
    return sorted({point.name for point in _found(group)})


def load(group: str, name: str) -> Any:
    """Load the object registered under `name`; raises `LookupError` that lists the registered names."""
    for point in _found(group):
        if point.name == name:
            return point.load()
    raise LookupError(f"no {group} entry point {name!r}; {did_you_mean(name, names(group))}")


def _found(group: str) -> tuple[EntryPoint, ...]:
    return _read(entry_points, group)


@lru_cache(maxsize=64)
def _read(find: Callable[..., Any], group: str) -> tuple[EntryPoint, ...]:
    """Read the entry points of a group once, because that reads a file of every installed package."""
    return tuple(find(group=group))
