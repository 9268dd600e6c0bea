"""What the usual scores of room are made of, side by side, so that a few steps compute them for many nodes."""

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.tie_break import bits_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

_ROWS = 8
VALUES = slice(0, 4)
"""Rows: a hundred times what is not counted as taken of memory and of CPU, what is requested of CPU and of memory."""
_MEMORY, _CPU = [4, 7], [5, 6]
"""Rows: what there is, once for each of the values."""
EXACT_BELOW = 2**53 // 101
"""Up to this capacity, in floating point too, the whole part of `100 * left / capacity` is what whole numbers give:
dividend and divisor together are less than 2**53, so that no quotient is rounded up to the next whole number."""
_NOTHING = 0.5
"""Stands for a capacity of 0: one thousandth of a CPU, or one byte, is already more than all of it."""
_SCRATCHES_MOST = 16
_SHORT = 1024


class ScoreBuffers:
    """Arrays for the steps between, for so many nodes at a time; made once, because making them costs as much as
    a step does."""

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
        """What is left of memory and of CPU, and after it, in the end, how even they are used."""
        self.worst = np.empty(count)
        self.refused = np.empty(count, dtype=np.bool_)
        # NumPy takes longer to look at a number than to add a short array of that number.
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
    """Kept by the table, beside its own columns, in floating point: NumPy divides these several times faster."""

    def __init__(self, capacity: int) -> None:
        self._columns: Floats = np.zeros((_ROWS, capacity))
        self.shown: Floats = self._columns[:, :0]
        self._bare: set[str] = set()
        self._vast: set[str] = set()
        self._scratches: dict[int, ScoreBuffers] = {}

    @property
    def complete(self) -> bool:
        """Every node has both CPU and memory."""
        return not self._bare

    @property
    def exact(self) -> bool:
        """No node is so large that floating point loses something."""
        return not self._vast

    def scratch(self, count: int) -> ScoreBuffers:
        found = self._scratches.get(count)
        if found is None:
            if len(self._scratches) >= _SCRATCHES_MOST:
                self._scratches.clear()
            found = self._scratches[count] = ScoreBuffers(count, bits_of(self.shown.shape[1]))
        return found

    def take(self, at: NDArray[np.intp], scratch: ScoreBuffers) -> None:
        """The columns of these nodes. (Of a part of an array NumPy would make a copy first.)"""
        self._columns.take(at, axis=1, out=scratch.columns, mode="clip")

    # What only the table calls.

    @property
    def columns(self) -> Floats:
        return self._columns

    def widen(self, extra: int) -> None:
        self._columns = np.concatenate([self._columns, np.zeros((_ROWS, extra))], axis=1)

    def show(self, count: int) -> None:
        if bits_of(count) != bits_of(self.shown.shape[1]):
            self._scratches.clear()
        self.shown = self._columns[:, :count]
        self.shown.flags.writeable = False

    def set_capacity(self, slot: int, node: str, cpu: int, memory: int) -> None:
        self._columns[_CPU, slot] = cpu or _NOTHING
        self._columns[_MEMORY, slot] = memory or _NOTHING
        _mark(self._bare, node, not (cpu and memory))
        _mark(self._vast, node, max(cpu, memory) >= EXACT_BELOW)

    def move(self, source: int, target: int) -> None:
        self._columns[:, target] = self._columns[:, source]

    def forget(self, node: str) -> None:
        self._bare.discard(node)
        self._vast.discard(node)


def _mark(names: set[str], name: str, wanted: bool) -> None:
    if wanted:
        names.add(name)
    else:
        names.discard(name)
