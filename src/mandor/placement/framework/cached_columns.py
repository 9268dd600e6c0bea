"""Answers that for each node depend on that node alone: kept, and made anew only for nodes that changed since."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.column import Mask, Scores

At = slice | NDArray[np.intp]
"""Which nodes: an index for the columns of a snapshot."""
EVERYWHERE = slice(None)
T = TypeVar("T", bound=np.generic)

FEW = 5
"""Of so few nodes, each is asked about sooner than a column of them is computed, or what is known of it looked up."""
_ANSWERS_MOST = 192
_CHANGES_MOST = 16_384
LAST_MOST = 1024
_ROWS_MOST = 1_200
_ROWS_BYTES = 256 * 1024 * 1024


class Row(Protocol):
    """Of a class, one number for each node; whoever keeps it knows what it is."""

    again: bool
    """Somebody asked for it again."""

    @property
    def nbytes(self) -> int: ...


class CachedColumns:
    """`compute(at)` answers for the nodes of an index; one answer is a byte a node."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, tuple[int, NDArray[Any]]] = {}
        self.rows: dict[Hashable, Any] = {}
        self._rows_bytes = 0
        self.stills: dict[Hashable, tuple[int, NDArray[Any] | None]] = {}
        """What goes by attributes alone, with their number, and is shared by rows."""
        self.settled: dict[Hashable, tuple[int, Any]] = {}
        """How far those look who say what of an ask they go by."""
        self.attributes = 0
        """Grows whenever a node comes, goes or changes."""
        self.numbering = 0
        """Grows whenever slots come, go or move."""
        self._changed = np.zeros(_CHANGES_MOST, dtype=np.intp)
        self._length = LAST_MOST
        self._first = -LAST_MOST
        """The number of the first change that is still listed."""

    def mask(self, question: Hashable, compute: Callable[[At], Mask]) -> Mask:
        found: Mask = self._answer((question, "mask"), compute, np.bool_)
        shown = found.view()
        shown.flags.writeable = False
        return shown

    def scores(self, question: Hashable, compute: Callable[[At], Scores]) -> Scores:
        """Of scores from 0 to 100, and nothing else."""
        return self._answer((question, "scores"), compute, np.uint8).astype(np.int64)

    @property
    def now(self) -> int:
        """The number of the next change."""
        return self._first + self._length

    def changes_since(self, number: int) -> NDArray[np.intp] | None:
        """The nodes on which something was placed or ended since; None: too many to tell."""
        return None if number < self._first else self._changed[number - self._first : self._length]

    def last(self, count: int) -> NDArray[np.intp]:
        """Where the last so many changes were, at most `LAST_MOST`; before the first, some node."""
        return self._changed[self._length - count : self._length]

    def keep_row(self, key: Hashable, row: Row) -> None:
        """Instead of the one that was asked for least, when there are too many."""
        self._drop_row(key)
        while self.rows and (len(self.rows) >= _ROWS_MOST or self._rows_bytes + row.nbytes > _ROWS_BYTES):
            oldest = next(iter(self.rows))
            if self.rows[oldest].again:  # it goes to the end of the line, once
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

    # What only the table calls.

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
        """One after another."""
        length, end = self._length, self._length + len(slots)
        if end < _CHANGES_MOST:
            self._changed[length:end] = slots
            self._length = end
        else:
            for slot in slots:
                self.changed(slot)

    def renumbered(self) -> None:
        """Slots have come, gone or moved."""
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
