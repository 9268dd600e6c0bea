"""Report: the keys of a foreign file that were mapped, and what was done with the others."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

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


class KeyState(NamedTuple):
    """One key of a file, and whether it is in the manifest."""

    file: str
    line: int
    path: str
    imported: bool


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
    keys: tuple[KeyState, ...] = ()
    """All keys in the order of the file; those below a key that is not in the manifest are left out."""

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
            self.keys + other.keys,
        )

    def entries(self) -> list[dict[str, Any]]:
        """Return the outcome of each key as plain data: imported, changed or not imported, and why."""
        notes: dict[tuple[str, str], list[Note]] = {}
        for note in self.notes:
            notes.setdefault((note.file, note.path), []).append(note)
        found = []
        for key in self.keys:
            said = notes.pop((key.file, key.path), [])
            guessed = any(note.fate == "guessed" for note in said)
            outcome = "not imported" if not key.imported else "changed" if guessed else "imported"
            if (key.file, key.path) in self.idle and not said:
                found.append(_entry(key.file, key.line, key.path, outcome, "its own tool ignores it, too", ""))
            else:
                found.append(_entry(key.file, key.line, key.path, outcome, *_reasons(said)))
        for (file, path), said in notes.items():
            outcome = "changed" if all(note.fate == "guessed" for note in said) else "not imported"
            found.append(_entry(file, said[0].line, path, outcome, *_reasons(said)))
        return sorted(found, key=lambda entry: (entry["file"], entry["line"], entry["key"]))

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


def _reasons(notes: list[Note]) -> tuple[str, str]:
    """Return the texts and the hints of notes about one key."""
    return "; ".join(note.text for note in notes), "; ".join(note.hint for note in notes if note.hint)


def _entry(file: str, line: int, key: str, outcome: str, why: str, hint: str) -> dict[str, Any]:
    entry = {"file": file, "line": line, "key": key, "outcome": outcome}
    return entry | ({"why": why} if why else {}) | ({"hint": hint} if hint else {})


NO_REPORT = Report()
"""The report when no file was foreign."""
