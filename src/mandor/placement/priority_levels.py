"""Resources taken on each node by priority, as columns that are updated with each allocation.

Preemption compares all nodes at once; summing up all allocations for each preemption would take too long.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mandor.placement.arrays import move_amounts, widened
from mandor.placement.framework.occupancy import AllocationTerms, PriorityUsage, StoppingUsage
from mandor.placement.framework.request import Shape
from mandor.placement.framework.resource_rows import ResourceRows
from mandor.placement.framework.snapshot import Amounts

LEVELS_MOST = 64
"""Priorities with a column of their own; above that, neighbouring priorities share one."""
_SHAPES_MOST = 4096
_NEVER = -np.inf
T = TypeVar("T", bound=np.generic)


class PriorityLevels:
    """`rows` and `size` are the table's own; the table reports allocations and changes of its columns and rows."""

    def __init__(self, rows: ResourceRows, size: Callable[[], int], capacity: int) -> None:
        self._rows = rows
        self._size = size
        self._taken: dict[int, Amounts] = {}
        self._lumped: set[int] = set()
        """Lowest priorities of the shared columns."""
        self._width = 1
        """Priorities that a shared column covers; a power of two, so that wider columns contain whole ones."""
        self._going = self._nothing(capacity)
        self._latest: NDArray[np.float64] = np.full(capacity, _NEVER)
        self._ends: dict[int, dict[float, int]] = {}
        """By slot: the end times of stopping instances, with their number."""
        self._one: dict[Shape, Amounts] = {}
        """Resources of one instance by shape."""

    def below(self, priority: int) -> list[PriorityUsage]:
        count = self._size()
        return [
            PriorityUsage(each, _shown(taken[:, :count]))
            for each, taken in sorted(self._taken.items())
            if each < priority
        ]

    def going(self) -> StoppingUsage:
        count = self._size()
        return StoppingUsage(_shown(self._going[:, :count]), _shown(self._latest[:count]))

    # Called by the table only.

    def come(self, slot: int, shape: Shape, terms: AllocationTerms) -> None:
        taken = self._of(terms)
        if taken is not None:
            here = taken[:, slot]
            np.add(here, self._one_of(shape), out=here)
            if terms.until is not None:
                ends = self._ends.setdefault(slot, {})
                ends[terms.until] = ends.get(terms.until, 0) + 1
                self._latest[slot] = max(self._latest[slot], terms.until)

    def come_all(self, slots: Sequence[int], times: Sequence[int], shape: Shape, terms: AllocationTerms) -> None:
        """Add settled instances: `times` to each of these slots."""
        taken = self._of(terms)
        if taken is not None:
            taken[:, slots] += np.multiply.outer(self._one_of(shape), times)

    def leave(self, slot: int, shape: Shape, terms: AllocationTerms) -> None:
        taken = self._of(terms)
        if taken is not None:
            here = taken[:, slot]
            np.subtract(here, self._one_of(shape), out=here)
            if terms.until is not None:
                self._end(slot, terms.until)

    def widen(self, extra: int) -> None:
        """Add columns for more nodes."""
        self._taken = {each: widened(taken, extra) for each, taken in self._taken.items()}
        self._going = widened(self._going, extra)
        self._latest = np.concatenate([self._latest, np.full(extra, _NEVER)])

    def add_row(self) -> None:
        """Add a row for a new resource."""
        self._taken = {each: _higher(taken) for each, taken in self._taken.items()}
        self._going = _higher(self._going)
        self._one.clear()

    def move_row(self, source: int, target: int, slots: NDArray[np.intp]) -> None:
        """Move the amounts of a device kind to another row."""
        for taken in (*self._taken.values(), self._going):
            move_amounts(taken, source, target, slots)
        self._one.clear()

    def move(self, source: int, target: int) -> None:
        """Move the last node to the slot of a removed one."""
        for taken in (*self._taken.values(), self._going):
            taken[:, target] = taken[:, source]
            taken[:, source] = 0
        self._latest[target] = self._latest[source]
        self._latest[source] = _NEVER
        ends = self._ends.pop(source, None)
        self._ends.pop(target, None)
        if ends is not None and source != target:
            self._ends[target] = ends

    def _of(self, terms: AllocationTerms) -> Amounts | None:
        """Return the columns in which an allocation counts; None: in none."""
        if terms.held:
            return None
        if terms.until is not None:
            return self._going
        return None if terms.rank.spared else self._level(terms.rank.priority)

    def _end(self, slot: int, until: float) -> None:
        ends = self._ends[slot]
        ends[until] -= 1
        if not ends[until]:
            del ends[until]
            if until == self._latest[slot]:
                self._latest[slot] = max(ends, default=_NEVER)
            if not ends:
                del self._ends[slot]

    def _one_of(self, shape: Shape) -> Amounts:
        found = self._one.get(shape)
        if found is None:
            found = np.zeros(self._rows.height + 1, dtype=np.int64)
            for resource, amount in shape.wanted:
                found[self._rows.stored(resource)] += amount
            found[-1] = 1
            if len(self._one) >= _SHAPES_MOST:
                self._one.clear()
            self._one[shape] = found
        return found

    def _level(self, priority: int) -> Amounts:
        found = self._taken.get(self._name(priority) if self._lumped else priority)
        if found is None:
            if len(self._taken) >= LEVELS_MOST:
                self._lump()
            found = self._taken.setdefault(self._name(priority), self._nothing(self._going.shape[1]))
        return found

    def _name(self, priority: int) -> int:
        lowest = priority // self._width * self._width
        return lowest if lowest in self._lumped else priority

    def _lump(self) -> None:
        """Drop empty columns; if that is not enough, merge neighbouring priorities."""
        self._taken = {each: taken for each, taken in self._taken.items() if taken[-1].any()}
        self._lumped &= self._taken.keys()
        if not self._lumped:
            self._width = 1
        if len(self._taken) < LEVELS_MOST:
            return
        fine, self._taken = self._taken, {}
        while len({each // self._width for each in fine}) > LEVELS_MOST // 2:
            self._width *= 2
        self._lumped = {each // self._width * self._width for each in fine}
        for priority, taken in fine.items():
            known = self._taken.setdefault(self._name(priority), taken)
            if known is not taken:
                known += taken

    def _nothing(self, capacity: int) -> Amounts:
        return np.zeros((self._rows.height + 1, capacity), dtype=np.int64)


def _shown(view: NDArray[T]) -> NDArray[T]:
    view.flags.writeable = False
    return view


def _higher(taken: Amounts) -> Amounts:
    """Add a row before the last one, which holds the number of instances."""
    return np.concatenate([taken[:-1], np.zeros((1, taken.shape[1]), dtype=np.int64), taken[-1:]])
