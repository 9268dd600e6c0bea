"""What a plan comes to: writes, sentences for people, and when to look again."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from mandor.model.meta import Object
from mandor.store.base import Delete, Put, Write


@dataclass(frozen=True, slots=True)
class Note:
    """An event, told once the writes are done."""

    about: Object
    reason: str
    message: str
    warning: bool = False


@dataclass(slots=True)
class Draft:
    writes: list[Write] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    again_seconds: float | None = None
    """Look again after so long, even if nothing changes."""
    rest: Iterator[Write] = field(default_factory=lambda: iter(()))
    """What the next plan would create if nothing else changes, made when it is asked for: whoever carries this one out
    may go on with it, and saves plans."""
    in_place: bool = False
    """Of a workload: nobody comes, goes or is replaced."""

    @property
    def unfinished(self) -> bool:
        """The next plan goes on with it at once."""
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
        """The next plan goes on at once; or this one's `rest` is taken first."""
        self.rest = chain(self.rest, more)
        self.again(0.0)

    def add(self, other: "Draft") -> None:
        self.writes += other.writes
        self.notes += other.notes
        if other.again_seconds is not None:
            self.again(other.again_seconds)
