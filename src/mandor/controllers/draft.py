"""What a plan comes to: writes, sentences for people, and when to look again."""

from dataclasses import dataclass, field

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

    def add(self, other: "Draft") -> None:
        self.writes += other.writes
        self.notes += other.notes
        if other.again_seconds is not None:
            self.again(other.again_seconds)
