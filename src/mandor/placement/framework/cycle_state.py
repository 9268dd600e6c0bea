"""Values that plugins pass from one point to the next during one cycle."""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


class CycleState:
    """Key-value store that lives from a decision until its instance is bound or given back.

    A plugin writes under its own name and may read the values of others.
    """

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self._values: dict[str, object] = dict(values) if values else {}

    def write(self, key: str, value: object) -> None:
        self._values[key] = value

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def read(self, key: str, kind: type[T]) -> T:
        """Return a value; raise `KeyError` if it was not written, `TypeError` if it has another type."""
        value = self._values[key]
        if not isinstance(value, kind):
            raise TypeError(f"{key} is {type(value).__name__}, not {kind.__name__}")
        return value

    def find(self, key: str, kind: type[T]) -> T | None:
        """Return a value; None: it was not written."""
        return self.read(key, kind) if key in self else None


def key_of_form(name: str, variant: int) -> str:
    """Return the key of a plugin's consultation result for one form of an instance."""
    return f"{name}/{variant}" if variant else name


def of_form(answers: Mapping[str, object] | None, variant: int) -> Mapping[str, object] | None:
    """Return the consultation results for one form, by plugin."""
    if not variant or not answers:
        return answers
    end = key_of_form("", variant)
    return {name.removesuffix(end): value for name, value in answers.items() if name.endswith(end)}
