"""Runs a coroutine that never suspends, without a task."""

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Waits(Exception):
    """Raised if the coroutine suspends; it was closed, and may be run again in a task."""


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that completes without suspending; raises `Waits` if it suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise Waits
