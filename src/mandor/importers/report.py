"""Report: the keys of a foreign file that were mapped, and what was done with the others."""

from dataclasses import dataclass
from typing import Any, Literal

Fate = Literal["unknown", "dropped", "guessed", "skipped"]
"""`unknown`: the importer does not know the key; `dropped`: the key has no counterpart; `guessed`: the key is mapped to
something with a slightly different meaning; `skipped`: its own tool ignores it, too, unless it is requested."""


@dataclass(frozen=True, slots=True, order=True)
class Note:
    """One key whose meaning in the manifest differs from that in the file."""

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
    """Counts every key once: it is in the manifest, or a note says what was done with it."""

    mapped: int = 0
    """Number of keys in the manifest, including guessed ones."""
    dropped: int = 0
    """Number of keys that are not in the manifest, including those below a dropped key."""
    notes: tuple[Note, ...] = ()
    left: frozenset[tuple[str, str]] = frozenset()
    """File and path of each key that is not in the manifest; nothing below it is, either."""
    idle: frozenset[tuple[str, str]] = frozenset()
    """File and path of each key that has no effect in its own tool, and is not counted."""

    @property
    def total(self) -> int:
        return self.mapped + self.dropped

    @property
    def share(self) -> float:
        """Return the share of keys that are in the manifest; 1 for an empty file."""
        return self.mapped / self.total if self.total else 1.0

    @property
    def losses(self) -> tuple[Note, ...]:
        """Return the notes about keys that are not in the manifest."""
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
        """Return the report as plain data for JSON."""
        notes = [
            {"file": each.file, "line": each.line, "path": each.path, "fate": each.fate, "text": each.text}
            | ({"hint": each.hint} if each.hint else {})
            for each in self.notes
        ]
        return {"mapped": self.mapped, "dropped": self.dropped, "notes": notes}


NO_REPORT = Report()
"""The report when no file was foreign."""
