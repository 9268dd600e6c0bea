"""What plugins tell each other, and themselves, during one cycle."""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


class CycleState:
    """Lives from the decision to its end, bound or given up. A plugin writes under its own name and reads what it
    needs."""

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self._values: dict[str, object] = dict(values) if values else {}

    def write(self, key: str, value: object) -> None:
        self._values[key] = value

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def read(self, key: str, kind: type[T]) -> T:
        """A `KeyError` if nobody wrote it, a `TypeError` if it is something else."""
        value = self._values[key]
        if not isinstance(value, kind):
            raise TypeError(f"{key} is {type(value).__name__}, not {kind.__name__}")
        return value

    def find(self, key: str, kind: type[T]) -> T | None:
        """None: nobody wrote it."""
        return self.read(key, kind) if key in self else None


def key_of_form(name: str, variant: int) -> str:
    """Under which what was asked elsewhere for a plugin stands among the answers for all forms of an instance."""
    return f"{name}/{variant}" if variant else name


def of_form(answers: Mapping[str, object] | None, variant: int) -> Mapping[str, object] | None:
    """The answers about that form, by plugin."""
    if not variant or not answers:
        return answers
    end = key_of_form("", variant)
    return {name.removesuffix(end): value for name, value in answers.items() if name.endswith(end)}
