"""Report: which keys of a foreign file found their place, and what became of the others."""

from dataclasses import dataclass
from typing import Any, Literal

Fate = Literal["unknown", "dropped", "guessed", "skipped"]
"""`unknown`: nobody here knows the key; `dropped`: it is known, and has no counterpart; `guessed`: it is mapped, but
does not mean quite the same; `skipped`: its own tool leaves it out, too, unless it is asked for."""


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """One key that is not in the manifest as it was in the file."""

    file: str
    line: int
    path: str
    fate: Fate
    text: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else f"line {self.line}"
        return f"{place}: {self.path}: {self.fate}: {self.text}{f' ({self.hint})' if self.hint else ''}"


@dataclass(frozen=True, slots=True)
class Report:
    """Every key is counted once: it is in the manifest, or a note says what became of it."""

    mapped: int = 0
    """Keys that are in the manifest, those that were guessed among them."""
    dropped: int = 0
    """Keys that are not, those below a dropped key included."""
    notes: tuple[Note, ...] = ()
    left: frozenset[tuple[str, str]] = frozenset()
    """File and path of each key that is not in the manifest; all below it is not, either."""
    idle: frozenset[tuple[str, str]] = frozenset()
    """Of each that says nothing by itself, to its own tool as here, and so is not counted."""

    @property
    def total(self) -> int:
        return self.mapped + self.dropped

    @property
    def share(self) -> float:
        """How much of the file is in the manifest; nothing is all of an empty one."""
        return self.mapped / self.total if self.total else 1.0

    @property
    def losses(self) -> tuple[Note, ...]:
        """What the manifest does not say, and the file does."""
        return tuple(note for note in self.notes if note.fate != "skipped")

    def __add__(self, other: "Report") -> "Report":
        return Report(
            self.mapped + other.mapped,
            self.dropped + other.dropped,
            self.notes + other.notes,
            self.left | other.left,
            self.idle | other.idle,
        )

    @property
    def summary(self) -> str:
        guessed = sum(1 for note in self.notes if note.fate == "guessed")
        parts = [f"{self.mapped} of {self.total} keys mapped"]
        if guessed:
            parts.append(f"{guessed} of them with a guess")
        if self.dropped:
            parts.append(f"{self.dropped} left out")
        return ", ".join(parts)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        notes = [
            {"file": each.file, "line": each.line, "path": each.path, "fate": each.fate, "text": each.text}
            | ({"hint": each.hint} if each.hint else {})
            for each in self.notes
        ]
        return {"mapped": self.mapped, "dropped": self.dropped, "notes": notes}


NO_REPORT = Report()
"""There was nothing foreign."""
