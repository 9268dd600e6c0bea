"""What plugins tell each other, and themselves, during one cycle."""

from typing import TypeVar

T = TypeVar("T")


class CycleState:
    """Lives for one decision. A plugin writes under its own name and reads what it needs."""

    def __init__(self) -> None:
        self._values: dict[str, object] = {}

    def write(self, key: str, value: object) -> None:
        self._values[key] = value

    def read(self, key: str, kind: type[T]) -> T:
        """A `KeyError` if nobody wrote it, a `TypeError` if it is something else."""
        value = self._values[key]
        if not isinstance(value, kind):
            raise TypeError(f"{key} is {type(value).__name__}, not {kind.__name__}")
        return value
