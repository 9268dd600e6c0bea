"""Result of a plan: writes, events, and when to plan again."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from mandor.model.meta import Object
from mandor.store.base import Delete, Put, Write


@dataclass(frozen=True, slots=True)
class Note:
    """An event, recorded after the writes are committed."""

    about: Object
    reason: str
    message: str
    warning: bool = False


@dataclass(slots=True)
class Draft:
    writes: list[Write] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    again_seconds: float | None = None
    """Seconds until the next plan even if nothing changes."""
    rest: Iterator[Write] = field(default_factory=lambda: iter(()))
    """Further writes of the next plan if nothing else changes, computed lazily; committing them saves a plan."""
    in_place: bool = False
    """For a workload: no instance is created, stopped or replaced."""

    @property
    def unfinished(self) -> bool:
        """The next plan continues immediately."""
        return self.again_seconds == 0.0

    def put(self, value: Object) -> None:
        self.writes.append(Put(value))

    def delete(self, value: Object) -> None:
        self.writes.append(Delete(value.key, value.meta.version))

    def note(self, about: Object, reason: str, message: str, *, warning: bool = False) -> None:
        self.notes.append(Note(about, reason, message, warning))

    def again(self, seconds: float) -> None:
        if self.again_seconds is None or seconds < self.again_seconds:
            self.again_seconds = seconds

    def go_on(self, more: Iterator[Write]) -> None:
        """Continue immediately, with these writes appended to `rest`."""
        self.rest = chain(self.rest, more)
        self.again(0.0)

    def add(self, other: "Draft") -> None:
        self.writes += other.writes
        self.notes += other.notes
        if other.again_seconds is not None:
            self.again(other.again_seconds)
