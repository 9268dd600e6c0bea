"""Rows of resources in the arrays of the table.

CPU, memory and disk have a row each, and so do the first device kinds. Further kinds share rows: two kinds may have the
same row if no node has both. So thousands of kinds that few nodes have need few rows.
"""

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.cached_columns import EVERYWHERE
from mandor.placement.framework.read_only import ReadOnly, Writable
from mandor.placement.framework.request import CPU, DISK, MEMORY

BASIC = {CPU: 0, MEMORY: 1, DISK: 2}
"""Resources of every node, with their rows."""
OWN_MOST = 8
"""Device kinds with a row of their own, which is read without a mask."""
_NONE = -1
Slots = Sequence[int] | NDArray[np.intp]


class MovedRow(NamedTuple):
    """A device kind has another row from now on: the amounts at these slots move."""

    source: int
    target: int
    slots: NDArray[np.intp]


class ResourceRows(ReadOnly):
    """Finds the row of each resource.

    A resource has a number, which plugins see and which never changes, and a stored row, which it may share.
    """

    _numbers: dict[str, int]
    _names: list[str]
    _stored: list[int]
    """Stored row by number."""
    _owners: NDArray[np.int32]
    """`[device row, node]`: number of the kind that the row counts on the node."""
    _own: int
    """Device kinds with a row of their own."""

    @property
    def numbers(self) -> MappingProxyType[str, int]:
        return MappingProxyType(self._numbers)

    @property
    def height(self) -> int:
        """Number of stored rows."""
        return len(BASIC) + len(self._owners)

    def stored(self, resource: str) -> int:
        """Return the stored row of a resource. A shared row is valid only at nodes that have the resource."""
        return self._stored[self._numbers[resource]]

    def read(self, amounts: NDArray[np.int64], number: int, at: Any) -> NDArray[np.int64]:
        """Return the amounts of one resource at some slots, zero where a shared row counts another kind."""
        row = self._stored[number]
        values: NDArray[np.int64] = amounts[row, at]
        device = row - len(BASIC)
        if device < self._own:
            return values
        return np.where(self._owners[device, : amounts.shape[1]][at] == number, values, 0)

    def of_node(self, slot: int) -> Iterator[tuple[str, int]]:
        """Yield the names and stored rows of the resources of one node."""
        yield from BASIC.items()
        for row, number in enumerate(self._owners[:, slot].tolist(), len(BASIC)):
            if number != _NONE:
                yield self._names[number], row


class MutableResourceRows(Writable, ResourceRows):
    """The rows as the table assigns them."""

    def __init__(self, capacity: int, *, own_most: int = OWN_MOST) -> None:
        """`capacity`: number of slots. `own_most`: device kinds with a row of their own."""
        self._numbers = dict(BASIC)
        self._names = list(BASIC)
        self._stored = list(BASIC.values())
        self._owners = np.full((0, capacity), _NONE, dtype=np.int32)
        self._own = own_most

    def claim(self, resource: str, slot: int) -> MovedRow | None:
        """Count a resource at a slot from now on. Return the move of its amounts, if it needs another row for that."""
        number = self._numbers.get(resource)
        if number is None:
            self._add(resource, slot)
            return None
        row = self._stored[number] - len(BASIC)
        if row < 0 or self._owners[row, slot] == number:
            return None
        if self._owners[row, slot] == _NONE:
            self._owners[row, slot] = number
            return None
        slots = (self._owners[row] == number).nonzero()[0]
        target = self._free_row([*slots.tolist(), slot])
        self._owners[row, slots] = _NONE
        self._owners[target, slots] = number
        self._owners[target, slot] = number
        self._stored[number] = target + len(BASIC)
        return MovedRow(row + len(BASIC), target + len(BASIC), slots)

    def release(self, slot: int, unused: NDArray[np.bool_]) -> None:
        """Free the device rows that a node does not use any more. `unused`: one for each stored row."""
        rows = [row for row in range(self._own, len(self._owners)) if unused[row + len(BASIC)]]
        self._owners[rows, slot] = _NONE

    def move(self, source: int, target: int) -> None:
        """Move the last node to the slot of a removed one."""
        self._owners[:, target] = self._owners[:, source]
        self._owners[:, source] = _NONE

    def widen(self, extra: int) -> None:
        """Add slots."""
        more = np.full((len(self._owners), extra), _NONE, dtype=np.int32)
        self._owners = np.concatenate([self._owners, more], axis=1)

    def _add(self, resource: str, slot: int) -> None:
        number = self._numbers[resource] = len(self._names)
        self._names.append(resource)
        row = self._new_row() if len(self._owners) < self._own else self._free_row([slot])
        self._stored.append(row + len(BASIC))
        self._owners[row, slot] = number

    def _free_row(self, slots: Slots) -> int:
        """Return a shared device row that counts nothing at these slots."""
        for row in range(self._own, len(self._owners)):
            if (self._owners[row, slots] == _NONE).all():
                return row
        return self._new_row()

    def _new_row(self) -> int:
        self._owners = np.concatenate([self._owners, np.full((1, self._owners.shape[1]), _NONE, dtype=np.int32)])
        return len(self._owners) - 1


class AmountRows:
    """`[resource, node]`: amounts of all resources at all nodes, read-only, with the index of an array:
    `free[rows["gpu"]]`."""

    __slots__ = ("_amounts", "_rows")

    def __init__(self, amounts: NDArray[np.int64], rows: ResourceRows) -> None:
        """`amounts`: a read-only array by stored row."""
        self._amounts = amounts
        self._rows = rows

    def __getitem__(self, key: Any) -> NDArray[np.int64]:
        row, at = key if isinstance(key, tuple) else (key, EVERYWHERE)
        if isinstance(row, slice):
            return self._amounts[: len(BASIC)][row, at]
        return self._rows.read(self._amounts, row, at)

    def __setitem__(self, key: Any, value: object) -> None:
        raise TypeError("amounts are read-only: a plugin does not change the cluster's state")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.int64]:
        return np.array([self[number] for number in self._rows.numbers.values()], dtype=dtype)

    def copy(self) -> NDArray[np.int64]:
        """Return an array with a row for each resource."""
        return np.asarray(self)

    def tolist(self) -> list[list[int]]:
        found: list[list[int]] = self.copy().tolist()
        return found
