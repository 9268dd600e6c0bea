"""Columns from which the standard resource scores of many nodes are computed in a few NumPy operations."""

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.tie_break import bits_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

_ROWS = 8
VALUES = slice(0, 4)
"""Rows: a hundred times the free memory and CPU as scores count them, then the requested CPU and memory."""
_MEMORY, _CPU = [4, 7], [5, 6]
"""Rows with the capacity, one for each of the values."""
EXACT_BELOW = 2**53 // 101
"""Below this capacity, the integer part of `100 * left / capacity` is exact in floating point: dividend and divisor add
up to less than 2**53, so that no quotient is rounded up to the next integer."""
_SCALE = 50.0
"""Half of the highest score."""
_OFFSET = 150
_NOTHING = 0.5
"""Value for a capacity of 0: one millicore, or one byte, is more than that."""
_SCRATCHES_MOST = 16
_SHORT = 1024


class ScoreBuffers:
    """Intermediate arrays for a number of nodes; reused, because allocating them takes as long as an operation."""

    def __init__(self, count: int, bits: int) -> None:
        self.count = count
        self.columns: Floats = np.empty((_ROWS, count))
        flat = self.columns.reshape(-1)
        self.values = flat[: 4 * count]
        self.has = flat[4 * count :]
        self.left = flat[: 2 * count]
        self.shares = flat[2 * count : 4 * count]
        self.share_cpu, self.share_memory = flat[2 * count : 3 * count], flat[3 * count : 4 * count]
        self.scores = flat[: 3 * count]
        """Free shares of memory and of CPU, then the balance between them."""
        self.worst = np.empty(count)
        self.refused = np.empty(count, dtype=np.bool_)
        # For short arrays, NumPy converts a Python number more slowly than it reads an array of that number.
        short = count <= _SHORT
        self.zeros: Floats | float = np.zeros(2 * count) if short else 0.0
        self.ones: Floats | float = np.ones(2 * count) if short else 1.0
        self.ones_once: Floats | float = np.ones(count) if short else 1.0
        self.twos: Floats | float = np.full(count, 2.0) if short else 2.0
        self.fifties: Floats | float = np.full(count, 50.0) if short else 50.0
        self.int_ones: Ints | int = np.ones(count, dtype=np.int32) if short else 1
        self.lot_bits: Ints | int = np.full(count, bits, dtype=np.int32) if short else bits
        self.lot_masks: Ints | int = np.full(count, (1 << bits) - 1, dtype=np.int32) if short else (1 << bits) - 1


class CapacityColumns:
    """A floating-point copy of some columns of the table: NumPy divides floats several times faster than integers."""

    def __init__(self, capacity: int) -> None:
        self._columns: Floats = np.zeros((_ROWS, capacity))
        self._offsets: Ints = np.zeros(capacity, dtype=np.int32)
        self._capacities: list[tuple[float, float]] = [(_NOTHING, _NOTHING)] * capacity
        """CPU and memory by slot, for computations with one node."""
        self.shown: Floats = self._columns[:, :0]
        self.offsets: Ints = self._offsets[:0]
        """150 minus the balance of the requested shares: half of the sum with the balance after a placement is the
        score of the change (50 + (50 + after - before) // 2)."""
        self._bare: set[str] = set()
        self._vast: set[str] = set()
        self._scratches: dict[int, ScoreBuffers] = {}

    @property
    def complete(self) -> bool:
        """Whether every node has both CPU and memory."""
        return not self._bare

    @property
    def exact(self) -> bool:
        """Whether all capacities are small enough for exact floating-point results."""
        return not self._vast

    def scratch(self, count: int) -> ScoreBuffers:
        found = self._scratches.get(count)
        if found is None:
            if len(self._scratches) >= _SCRATCHES_MOST:
                self._scratches.clear()
            found = self._scratches[count] = ScoreBuffers(count, bits_of(self.shown.shape[1]))
        return found

    def take(self, at: NDArray[np.intp], scratch: ScoreBuffers) -> None:
        """Copy the columns of these nodes to the buffers. (`take` of a slice would copy the slice first.)"""
        self._columns.take(at, axis=1, out=scratch.columns, mode="clip")

    # Called by the table.

    def set_values(self, slot: int, sums: NDArray[np.int64]) -> None:
        """Copy the sums of one slot."""
        values = sums[VALUES]
        self._columns[VALUES, slot] = values
        _, _, cpu, memory = values.tolist()
        has_cpu, has_memory = self._capacities[slot]
        apart = abs(min(cpu / has_cpu, 1.0) - min(memory / has_memory, 1.0))
        self._offsets[slot] = _OFFSET - int((2.0 - apart) * _SCALE)

    def set_all_values(self, at: list[int], sums: NDArray[np.int64]) -> None:
        """Copy the sums of several slots, given as columns."""
        self._columns[VALUES, at] = sums[VALUES]
        cpu, memory = np.minimum(sums[2:4] / self._columns[6:8, at], 1.0)
        self._offsets[at] = _OFFSET - ((2.0 - np.abs(cpu - memory)) * _SCALE).astype(np.int32)

    def widen(self, extra: int) -> None:
        self._columns = np.concatenate([self._columns, np.zeros((_ROWS, extra))], axis=1)
        self._offsets = np.concatenate([self._offsets, np.zeros(extra, dtype=np.int32)])
        self._capacities += [(_NOTHING, _NOTHING)] * extra

    def show(self, count: int) -> None:
        if bits_of(count) != bits_of(self.shown.shape[1]):
            self._scratches.clear()
        self.shown, self.offsets = self._columns[:, :count], self._offsets[:count]
        self.shown.flags.writeable = self.offsets.flags.writeable = False

    def set_capacity(self, slot: int, node: str, cpu: int, memory: int) -> None:
        self._columns[_CPU, slot] = cpu or _NOTHING
        self._columns[_MEMORY, slot] = memory or _NOTHING
        self._capacities[slot] = float(cpu or _NOTHING), float(memory or _NOTHING)
        _mark(self._bare, node, not (cpu and memory))
        _mark(self._vast, node, max(cpu, memory) >= EXACT_BELOW)

    def move(self, source: int, target: int) -> None:
        self._columns[:, target] = self._columns[:, source]
        self._offsets[target] = self._offsets[source]
        self._capacities[target] = self._capacities[source]

    def forget(self, node: str) -> None:
        self._bare.discard(node)
        self._vast.discard(node)


def _mark(names: set[str], name: str, wanted: bool) -> None:
    if wanted:
        names.add(name)
    else:
        names.discard(name)
