"""Answers that for each node depend on that node alone: kept, and made anew only for nodes that changed since."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.column import Mask, Scores

At = slice | NDArray[np.intp]
"""Which nodes: an index for the columns of a snapshot."""
EVERYWHERE = slice(None)
T = TypeVar("T", bound=np.generic)

_ANSWERS_MOST = 192
_ROWS_MOST = 64
_CHANGES_MOST = 4096


class Kept:
    """`compute(at)` answers for the nodes of an index; one answer is a byte a node."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, tuple[int, NDArray[Any]]] = {}
        self.rows: dict[Hashable, object] = {}
        """Of totals, by class; whoever keeps them knows what they are."""
        self.attributes = 0
        """Grows whenever a node comes, goes or changes."""
        self.numbering = 0
        """Grows whenever slots come, go or move."""
        self._changed: list[int] = []
        self._first = 0
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
        return self._first + len(self._changed)

    def changes_since(self, number: int) -> list[int] | None:
        """The nodes on which something was placed or ended since; None: too many to tell."""
        return None if number < self._first else self._changed[number - self._first :]

    def keep_row(self, key: Hashable, row: object) -> None:
        if key not in self.rows and len(self.rows) >= _ROWS_MOST:
            del self.rows[next(iter(self.rows))]
        self.rows[key] = row

    # What only the table calls.

    def changed(self, slot: int) -> None:
        if len(self._changed) == _CHANGES_MOST:
            self._first += _CHANGES_MOST // 2
            del self._changed[: _CHANGES_MOST // 2]
        self._changed.append(slot)

    def renumbered(self) -> None:
        """Slots have come, gone or moved."""
        self._answers.clear()
        self.rows.clear()
        self.attributes += 1
        self.numbering += 1

    def _answer(self, question: Hashable, compute: Callable[[At], NDArray[Any]], kind: type[T]) -> NDArray[T]:
        now, answers = self.now, self._answers
        since, answer = answers.get(question, (-1, None))
        if answer is None or since < self._first or now - since > max(8, len(answer) // 8):
            if answer is None and len(answers) >= _ANSWERS_MOST:
                del answers[next(iter(answers))]
            answer = compute(EVERYWHERE).astype(kind)
        elif since == now:
            return answer
        else:
            slots = set(self._changed[since - self._first :])
            if len(slots) <= 2:
                for slot in slots:
                    at = slice(slot, slot + 1)
                    answer[at] = compute(at)
            else:
                index = np.fromiter(slots, dtype=np.intp, count=len(slots))
                answer[index] = compute(index)
        answers[question] = (now, answer)
        return answer
