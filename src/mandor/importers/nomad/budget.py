"""Limits on evaluating HCL: size of numbers, texts and lists, and steps per file."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from mandor.errors import TooLarge

NUMBER_MOST = 10.0**30
TEXT_MOST = 256 * 1024
"""Characters of one text."""
LIST_MOST = 4096
"""Items of one list or mapping that a function makes."""
STEPS_MOST = 500_000
"""Steps per file: an expression is one step, and each value that is passed to a function or a job is one, too."""
LETTERS_PER_STEP = 64


@dataclass(slots=True)
class Budget:
    """Counts the steps of one file; raises `TooLarge` when the limit is reached."""

    file: str = ""
    left: int = STEPS_MOST
    _weights: dict[tuple[int, int], tuple[Any, int]] = field(default_factory=dict)
    """Size by id and length of a value (locals extend one mapping); holds the value, so that its id is not reused."""

    def spend(self, steps: int, line: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooLarge(
                f"evaluating the file takes more than {STEPS_MOST:,} steps",
                hint="write smaller lists and texts, or split the file",
                file=self.file,
                line=line,
            )

    def spend_on(self, value: Any, line: int) -> None:
        """Spend a step for each value inside this one, as often as it would be written."""
        self.spend(self._weight(value), line)

    def _weight(self, value: Any) -> int:
        if isinstance(value, str):
            return 1 + len(value) // LETTERS_PER_STEP
        if not isinstance(value, list | tuple | Mapping):
            return 1
        known = self._weights.get((id(value), len(value)))
        if known is not None:
            return known[1]
        inner = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
        total = min(1 + sum(map(self._weight, inner)), STEPS_MOST + 1)
        self._weights[id(value), len(value)] = value, total
        return total


def bounded(value: Any) -> Any:
    """Return the value; raise `ValueError` if the number, text or list is too large."""
    if isinstance(value, str):
        check_length(len(value))
    elif isinstance(value, bool) or value is None:
        return value
    elif isinstance(value, int | float):
        if not -NUMBER_MOST <= value <= NUMBER_MOST:
            raise ValueError(f"a number beyond {NUMBER_MOST:.0e}")
    elif isinstance(value, Collection):
        check_count(len(value))
    return value


def check_length(letters: int) -> None:
    if letters > TEXT_MOST:
        raise ValueError(f"a text of {letters:,} characters; at most {TEXT_MOST:,} are allowed")


def check_count(items: int) -> None:
    if items > LIST_MOST:
        raise ValueError(f"a list of {items:,} items; at most {LIST_MOST:,} are allowed")
