"""Cache of answers about each node that depend on that node alone; only changed nodes are computed again."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.column import Mask, Scores

At = slice | NDArray[np.intp]
"""An index of nodes in the columns of a snapshot."""
EVERYWHERE = slice(None)
T = TypeVar("T", bound=np.generic)

FEW = 5
"""Up to this number of nodes, calls for single nodes are faster than a column or the cache."""
_ANSWERS_MOST = 192
_CHANGES_MOST = 16_384
LAST_MOST = 1024
_ROWS_MOST = 1_200
_ROWS_BYTES = 256 * 1024 * 1024


class Row(Protocol):
    """Scores of one class of requests, one number for each node; the cache does not interpret them."""

    again: bool
    """Whether the row was used since it was cached or last spared."""

    @property
    def nbytes(self) -> int: ...


class CachedColumns:
    """Cached masks, scores and rows. `compute(at)` returns the answers for the nodes of an index."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, tuple[int, NDArray[Any]]] = {}
        self.rows: dict[Hashable, Any] = {}
        self._rows_bytes = 0
        self.stills: dict[Hashable, tuple[int, NDArray[Any] | None]] = {}
        """Sums that depend on node attributes alone, shared by rows, with the value of `attributes` at that time."""
        self.settled: dict[Hashable, tuple[int, Any]] = {}
        """Plugins by reach, for each cache key, with the value of `attributes` at that time."""
        self.attributes = 0
        """Number of times that a node came, went or changed its attributes."""
        self.numbering = 0
        """Number of times that slots came, went or moved."""
        self._changed = np.zeros(_CHANGES_MOST, dtype=np.intp)
        self._length = LAST_MOST
        self._first = -LAST_MOST
        """Number of the oldest change in the list."""

    def mask(self, question: Hashable, compute: Callable[[At], Mask]) -> Mask:
        found: Mask = self._answer((question, "mask"), compute, np.bool_)
        shown = found.view()
        shown.flags.writeable = False
        return shown

    def scores(self, question: Hashable, compute: Callable[[At], Scores]) -> Scores:
        """Return cached scores; they must be 0..100."""
        return self._answer((question, "scores"), compute, np.uint8).astype(np.int64)

    @property
    def now(self) -> int:
        """Number of the next change."""
        return self._first + self._length

    def changes_since(self, number: int) -> NDArray[np.intp] | None:
        """Return the slots on which an instance was placed or ended since; None: the list does not reach back that
        far."""
        return None if number < self._first else self._changed[number - self._first : self._length]

    def last(self, count: int) -> NDArray[np.intp]:
        """Return the slots of the last `count` changes, at most `LAST_MOST`; before the first change, any slot."""
        return self._changed[self._length - count : self._length]

    def keep_row(self, key: Hashable, row: Row) -> None:
        """Cache a row; if there are too many, the least used one is dropped."""
        self._drop_row(key)
        while self.rows and (len(self.rows) >= _ROWS_MOST or self._rows_bytes + row.nbytes > _ROWS_BYTES):
            oldest = next(iter(self.rows))
            if self.rows[oldest].again:  # spared once: it moves to the end
                kept = self.rows.pop(oldest)
                kept.again = False
                self.rows[oldest] = kept
            else:
                self._drop_row(oldest)
        self.rows[key] = row
        self._rows_bytes += row.nbytes

    def _drop_row(self, key: Hashable) -> None:
        before = self.rows.pop(key, None)
        if before is not None:
            self._rows_bytes -= before.nbytes

    # Called by the table.

    def changed(self, slot: int) -> None:
        length = self._length
        if length == _CHANGES_MOST:
            half = _CHANGES_MOST // 2
            self._changed[:half] = self._changed[half:]
            self._first += half
            length = half
        self._changed[length] = slot
        self._length = length + 1

    def changed_all(self, slots: Sequence[int]) -> None:
        """Record changes of several slots, in order."""
        length, end = self._length, self._length + len(slots)
        if end < _CHANGES_MOST:
            self._changed[length:end] = slots
            self._length = end
        else:
            for slot in slots:
                self.changed(slot)

    def renumbered(self) -> None:
        """Drop everything that depends on the numbers of slots, after they changed."""
        self._answers.clear()
        self.rows.clear()
        self._rows_bytes = 0
        self.stills.clear()
        self.attributes += 1
        self.numbering += 1
        self._changed[self._length - LAST_MOST : self._length] = 0

    def _answer(self, question: Hashable, compute: Callable[[At], NDArray[Any]], kind: type[T]) -> NDArray[T]:
        now, answers = self.now, self._answers
        since, answer = answers.get(question, (-1, None))
        if answer is None or since < self._first or now - since > max(8, len(answer) // 8):
            if answer is None and len(answers) >= _ANSWERS_MOST:
                del answers[next(iter(answers))]
            answer = compute(EVERYWHERE).astype(kind)
        elif since == now:
            return answer
        elif now - since <= 2:
            for slot in self._changed[since - self._first : self._length].tolist():
                at = slice(slot, slot + 1)
                answer[at] = compute(at)
        else:
            index = self._changed[since - self._first : self._length]
            answer[index] = compute(index)
        answers[question] = (now, answer)
        return answer
