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

_ANSWERS_MOST = 256
_CHANGES_MOST = 4096


class Kept:
    """`compute(at)` answers for the nodes of an index; one answer is a byte a node."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, tuple[int, NDArray[Any]]] = {}
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

    # What only the table calls.

    def changed(self, slot: int) -> None:
        if len(self._changed) == _CHANGES_MOST:
            self._first += _CHANGES_MOST // 2
            del self._changed[: _CHANGES_MOST // 2]
        self._changed.append(slot)

    def renumbered(self) -> None:
        """Slots have come, gone or moved."""
        self._answers.clear()

    def _answer(self, question: Hashable, compute: Callable[[At], NDArray[Any]], kind: type[T]) -> NDArray[T]:
        now = self._first + len(self._changed)
        since, answer = self._answers.get(question, (-1, None))
        if answer is None or since < self._first or now - since > max(8, len(answer) // 8):
            if answer is None and len(self._answers) >= _ANSWERS_MOST:
                del self._answers[next(iter(self._answers))]
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
        self._answers[question] = (now, answer)
        return answer
