"""Runs a coroutine that waits for nothing, without a task."""

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Waits(Exception):
    """It would have had to wait: it was given up where it stood, and may be run anew in a task."""


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Its result, or what it raises; `Waits` if it does not come to its end by itself."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise Waits
