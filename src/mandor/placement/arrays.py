"""Integer arrays with one column per node."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.snapshot import Amounts


def zeros(rows: int, columns: int) -> Amounts:
    return np.zeros((rows, columns), dtype=np.int64)


def widened(array: Amounts, extra: int) -> Amounts:
    """Return a copy with more columns."""
    return np.concatenate([array, zeros(array.shape[0], extra)], axis=1)


def move_amounts(array: Amounts, source: int, target: int, slots: Sequence[int] | NDArray[np.intp]) -> None:
    """Move the amounts at some columns to another row."""
    array[target, slots] = array[source, slots]
    array[source, slots] = 0


def read_only_columns(array: Amounts, count: int) -> Amounts:
    """Return a view of the first `count` columns that cannot be written."""
    view = array[:, :count]
    view.flags.writeable = False
    return view
