"""Finds what others plugged in, by Python entry point."""

from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from mandor.lib.words import did_you_mean


def names(group: str) -> list[str]:
    return sorted({point.name for point in _found(group)})


def load(group: str, name: str) -> Any:
    """The object registered under `name`; a `LookupError` says what there is instead."""
    for point in _found(group):
        if point.name == name:
            return point.load()
    raise LookupError(f"nothing called {name!r} is registered as {group}; {did_you_mean(name, names(group))}")


def _found(group: str) -> tuple[EntryPoint, ...]:
    return _read(entry_points, group)


@lru_cache(maxsize=64)
def _read(find: Callable[..., Any], group: str) -> tuple[EntryPoint, ...]:
    """What is installed is looked up once: that reads a file of every package there is."""
    return tuple(find(group=group))
