"""Long computations in steps: a generator yields its cost after each step, so that other tasks can run in between.

Cost is counted in *looks*: the time to look at one object among many, about half a microsecond. It is counted and not
measured, so that work is divided at the same points on every machine and in simulations.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, MutableSet, Sequence
from heapq import merge
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

Steps = Generator[int, None, R]
"""Yields its cost in looks, and returns a result."""

PIECE = 1_000
"""Objects per step."""
FEW = 250
"""Objects per step if each takes longer, as when they are written or sorted."""
TURN = 6_000
"""Looks after which other tasks run; a few milliseconds."""
WRITTEN = 15
"""Looks for making a new version of an object, or for checking more than a field or two."""


def at_once(steps: Steps[R]) -> R:
    """Run all steps without yielding."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: R = end.value
            return result


def pieces(items: Sequence[T], size: int = PIECE) -> Iterator[Sequence[T]]:
    """Yield the items in pieces."""
    if len(items) <= size:
        if items:
            yield items
        return
    for start in range(0, len(items), size):
        yield items[start : start + size]


def chosen(items: Sequence[T], choose: Callable[[Sequence[T]], Iterable[R]], *, each: int = 1) -> Steps[list[R]]:
    """Collect the results of `choose` for each piece, in order; `each` is the cost of one object in looks."""
    found: list[R] = []
    for piece in pieces(items):
        found += choose(piece)
        yield each * len(piece)
    return found


def emptied(*held: MutableSet[Any] | dict[Any, Any]) -> Steps[None]:
    """Empty these collections in steps, because freeing many objects at once takes long."""
    for each in held:
        take = each.popitem if isinstance(each, dict) else each.pop
        while each:
            some = min(PIECE, len(each))
            for _ in range(some):
                take()
            yield 2 * some


def ordered(items: Sequence[T], key: Callable[[T], Any]) -> Steps[list[T]]:
    """Sort in steps, like `sorted`."""
    runs = []
    for piece in pieces(items, FEW):
        runs.append(sorted(piece, key=key))
        yield WRITTEN * len(piece)
    if len(runs) <= 1:
        return runs[0] if runs else []
    found: list[T] = []
    for item in merge(*runs, key=key):
        found.append(item)
        if len(found) % FEW == 0:
            yield WRITTEN * FEW
    return found
