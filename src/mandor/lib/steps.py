"""Work in steps: a generator that says after each how much it has done, so that others have their turn in time.

It is counted in *looks*: what it takes to look at one object among many, half a microsecond or so. Counted, and
not timed: the same work is cut in the same places on every machine, and in a simulation.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, MutableSet, Sequence
from heapq import merge
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

Steps = Generator[int, None, R]
"""Yields looks, and returns what it comes to."""

PIECE = 1_000
"""So many objects are looked at in one go."""
FEW = 250
"""So many, where each takes longer: where it is written, or put in order."""
TURN = 6_000
"""After so many looks others have their turn: some milliseconds."""
WRITTEN = 15
"""Looks that making a new version of an object takes, or judging one by more than a field or two."""


def at_once(steps: Steps[R]) -> R:
    """Do it all, whoever waits."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: R = end.value
            return result


def pieces(items: Sequence[T], size: int = PIECE) -> Iterator[Sequence[T]]:
    """All of them, some at a time."""
    if len(items) <= size:
        if items:
            yield items
        return
    for start in range(0, len(items), size):
        yield items[start : start + size]


def chosen(items: Sequence[T], choose: Callable[[Sequence[T]], Iterable[R]], *, each: int = 1) -> Steps[list[R]]:
    """What `choose` makes of each piece, in order; `each`: the looks that one object takes."""
    found: list[R] = []
    for piece in pieces(items):
        found += choose(piece)
        yield each * len(piece)
    return found


def emptied(*held: MutableSet[Any] | dict[Any, Any]) -> Steps[None]:
    """Lets go of all that they hold: of what nobody else holds, all at once takes long."""
    for each in held:
        take = each.popitem if isinstance(each, dict) else each.pop
        while each:
            some = min(PIECE, len(each))
            for _ in range(some):
                take()
            yield 2 * some


def ordered(items: Sequence[T], key: Callable[[T], Any]) -> Steps[list[T]]:
    """As `sorted`."""
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
