"""A dictionary-encoded column of node attributes."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.read_only import ReadOnly, Writable

Mask = NDArray[np.bool_]
"""One boolean for each node."""
Scores = NDArray[np.int64]
"""One score for each node."""

V = TypeVar("V", bound=Hashable)

_ANSWERS_MOST = 512


class Column(ReadOnly, Generic[V]):
    """An attribute of all nodes. Tests and scores run once for each distinct value, not for each node.

    Results are cached until the column changes.
    """

    version: int
    """Number of changes to the column so far."""
    _codes: NDArray[np.intp]
    _shown: NDArray[np.intp]
    """`_codes` of the nodes that exist, read-only."""
    _length: int
    _values: list[V | None]
    _counts: list[int]
    _code_of: dict[V, int]
    _masks: dict[Hashable, Mask]
    _scores: dict[Hashable, Scores]
    _present: Mask | None

    @property
    def codes(self) -> NDArray[np.intp]:
        """One code for each node; nodes with equal values have equal codes, which are less than `codes_most`."""
        return self._shown

    @property
    def codes_most(self) -> int:
        return len(self._values)

    @property
    def present(self) -> Mask:
        """For each code, whether a node has it."""
        if self._present is None:
            present = np.array(self._counts, dtype=np.int64) > 0
            present.flags.writeable = False
            self.__dict__["_present"] = present
            return present
        return self._present

    def code(self, value: V) -> int | None:
        """Return the code of a value; None: no node has this value."""
        return self._code_of.get(value)

    def tally(self) -> list[tuple[V, int]]:
        """Return each value with the number of nodes that have it."""
        return [(value, self._counts[code]) for value, code in self._code_of.items()]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, slot: int) -> V:
        value = self._values[int(self._codes[slot])]
        assert value is not None
        return value

    def where(self, question: Hashable, test: Callable[[V], bool]) -> Mask:
        """Return a read-only mask of the nodes whose value passes the test. The result is cached under `question`."""
        found = self._masks.get(question)
        if found is None:
            answers = np.array([value is not None and test(value) for value in self._values], dtype=np.bool_)
            found = answers[self._codes[: self._length]] if len(answers) else np.zeros(0, dtype=np.bool_)
            found.flags.writeable = False
            _remember(self._masks, question, found)
        return found

    def scores(self, question: Hashable, score: Callable[[V], int]) -> Scores:
        """Return a read-only score for each node, computed from its value. The result is cached under `question`."""
        found = self._scores.get(question)
        if found is None:
            answers = np.array([0 if value is None else score(value) for value in self._values], dtype=np.int64)
            found = answers[self._codes[: self._length]] if len(answers) else np.zeros(0, dtype=np.int64)
            found.flags.writeable = False
            _remember(self._scores, question, found)
        return found


class MutableColumn(Writable, Column[V]):
    """The column as the table fills it."""

    def __init__(self, capacity: int) -> None:
        self.version = 0
        self._codes = np.zeros(capacity, dtype=np.intp)
        self._length = 0
        self._values = []
        self._counts = []
        self._code_of = {}
        self._unused: list[int] = []
        self._masks = {}
        self._scores = {}
        self._show()

    def append(self, value: V) -> None:
        if self._length == len(self._codes):
            self._codes = np.concatenate([self._codes, np.zeros(max(8, self._length), dtype=np.intp)])
        self._length += 1
        self._codes[self._length - 1] = self._take(value)
        self._forget_answers()

    def set(self, slot: int, value: V) -> None:
        before = int(self._codes[slot])
        if self._values[before] == value:
            return
        self._codes[slot] = self._take(value)
        self._drop(before)
        self._forget_answers()

    def remove(self, slot: int) -> None:
        """Remove a slot; the last slot takes its number."""
        self._drop(int(self._codes[slot]))
        self._length -= 1
        self._codes[slot] = self._codes[self._length]
        self._forget_answers()

    def _take(self, value: V) -> int:
        code = self._code_of.get(value)
        if code is None:
            code = self._unused.pop() if self._unused else len(self._values)
            if code == len(self._values):
                self._values.append(value)
                self._counts.append(0)
            else:
                self._values[code] = value
            self._code_of[value] = code
        self._counts[code] += 1
        return code

    def _drop(self, code: int) -> None:
        self._counts[code] -= 1
        if self._counts[code] == 0:
            value = self._values[code]
            assert value is not None
            del self._code_of[value]
            self._values[code] = None
            self._unused.append(code)

    def _forget_answers(self) -> None:
        self.version += 1
        self._show()
        self._masks.clear()
        self._scores.clear()

    def _show(self) -> None:
        self._present = None
        self._shown = self._codes[: self._length]
        self._shown.flags.writeable = False


A = TypeVar("A")


def _remember(answers: dict[Hashable, A], question: Hashable, answer: A) -> None:
    if len(answers) >= _ANSWERS_MOST:
        del answers[next(iter(answers))]
    answers[question] = answer
