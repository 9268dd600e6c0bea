"""What the usual scores of room are made of, side by side, so that a few steps compute them for many nodes."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SPARE_CPU, SPARE_MEMORY, USED_CPU, USED_MEMORY, HAS_CPU, HAS_MEMORY = range(6)
"""The rows: a hundred times what is not counted as taken, what is requested, and what there is."""
EXACT_BELOW = 2**53 // 101
"""Up to this capacity, in floating point too, the whole part of `100 * left / capacity` is what whole numbers give:
dividend and divisor together are less than 2**53, so that no quotient is rounded up to the next whole number."""
_NOTHING = 0.5
"""Stands for a capacity of 0: one thousandth of a CPU, or one byte, is already more than all of it."""


class Room:
    """Kept by the table, beside its own columns, in floating point: NumPy divides these several times faster."""

    def __init__(self, capacity: int) -> None:
        self._columns: Floats = np.zeros((6, capacity))
        self.shown: Floats = self._columns[:, :0]
        self._bare: set[str] = set()
        self._vast: set[str] = set()

    @property
    def complete(self) -> bool:
        """Every node has both CPU and memory."""
        return not self._bare

    @property
    def exact(self) -> bool:
        """No node is so large that floating point loses something."""
        return not self._vast

    # What only the table calls.

    @property
    def columns(self) -> Floats:
        return self._columns

    def widen(self, extra: int) -> None:
        self._columns = np.concatenate([self._columns, np.zeros((6, extra))], axis=1)

    def show(self, count: int) -> None:
        self.shown = self._columns[:, :count]
        self.shown.flags.writeable = False

    def set_capacity(self, slot: int, node: str, cpu: int, memory: int) -> None:
        self._columns[HAS_CPU, slot] = cpu or _NOTHING
        self._columns[HAS_MEMORY, slot] = memory or _NOTHING
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
