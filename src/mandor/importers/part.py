"""Part: a mapping of a foreign file that records which of its keys were read.

A file that is read through parts cannot lose a key: reading a value accounts for its key, and `Ledger.report` goes
through the whole file afterwards and lists each key that was not read, with its line.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from mandor.errors import Invalid
from mandor.importers.report import Fate, KeyState, Note, Report
from mandor.lib.yaml12 import List, Map

NOTES_MOST = 5000

_State = Literal["whole", "opened", "dropped", "ignored"]


class Traced(Map):
    """A mapping merged from several files; each key has the file it comes from."""

    __slots__ = ("files",)

    def __init__(self, line: int = 0) -> None:
        super().__init__(line)
        self.files: dict[str, str] = {}


@dataclass(slots=True)
class Ledger:
    """The outcome of each key of the opened files."""

    roots: list["Part"] = field(default_factory=list)
    states: dict[tuple[int, str], _State] = field(default_factory=dict)
    """Outcome by mapping and key; a mapping in several places (an alias) is one mapping."""
    seen: dict[int, Map] = field(default_factory=dict)
    """Keeps these mappings alive, so that no other mapping gets the same identity."""
    notes: dict[tuple[str, int, str, str], Note] = field(default_factory=dict)
    items: int = 0
    """Number of list items that were dropped one by one."""

    def open(self, source: Any, file: str, path: str = "", line: int = 1) -> "Part":
        """Open a document of a file; each of its keys must be accounted for."""
        if not isinstance(source, Map):
            raise Invalid("expected a mapping", file=file, line=line)
        part = Part(self, source, file, path)
        self.roots.append(part)
        return part

    def mark(self, source: Map, key: str, state: _State) -> None:
        self.seen[id(source)] = source
        self.states[(id(source), key)] = state

    def note(self, file: str, line: int, path: str, fate: Fate, text: str, hint: str = "") -> None:
        if len(self.notes) < NOTES_MOST:
            self.notes.setdefault((file, line, path, text), Note(file, line, path, fate, text, hint))

    def report(self) -> Report:
        """Return the report over all documents; keys that are not accounted for are `unknown`."""
        tally = _Tally()
        for part in self.roots:
            for key in part.source:
                self._count(part, key, tally)
        notes = tuple(sorted(self.notes.values()))
        left, idle = frozenset(tally.left), frozenset(tally.idle)
        return Report(tally.mapped, tally.dropped + self.items, notes, left, idle, tuple(tally.keys))

    def _count(self, part: "Part", key: str, tally: "_Tally") -> None:
        state, place = self.states.get((id(part.source), key)), (part.file_of(key), part.path_of(key))
        imported = state in {"whole", "opened"}
        tally.keys.append(KeyState(part.file_of(key), part.line_of(key), part.path_of(key), imported))
        if state == "ignored":
            tally.idle.add(place)
        elif imported:
            tally.mapped += 1
        else:
            tally.left.add(place)
            tally.dropped += 1 + _size(part.source[key])
        if state is None:
            part.note(key, "unknown", "unknown key")
        if state == "opened":
            for inner in part.inside(key):
                for name in inner.source:
                    self._count(inner, name, tally)


@dataclass(slots=True)
class _Tally:
    """Counts of keys while a report is made."""

    mapped: int = 0
    dropped: int = 0
    left: set[tuple[str, str]] = field(default_factory=set)
    idle: set[tuple[str, str]] = field(default_factory=set)
    keys: list[KeyState] = field(default_factory=list)


class Part:
    """One mapping; see the module. Asking `in`, `for`, `peek` and `keys` accounts for nothing, everything else does.

    * taken as a value, with all below it: `take`, `text`, `texts`, `text_map`, `whole`, `number`, `flag`
    * opened, its own keys are to be accounted for: `part`, `parts`, `entries`
    * not used, with the reason: `drop`, `drop_item`; used, but not the same thing: `guess`; nothing by itself: `ignore`
    """

    __slots__ = ("file", "ledger", "path", "source")

    def __init__(self, ledger: Ledger, source: Map, file: str, path: str) -> None:
        self.ledger = ledger
        self.source = source
        self.file = file
        self.path = path

    # Looking, without accounting for anything.

    def __contains__(self, key: str) -> bool:
        return key in self.source

    def __bool__(self) -> bool:
        return bool(self.source)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self.source))

    def keys(self) -> list[str]:
        return list(self.source)

    def peek(self, key: str) -> Any:
        return self.source.get(key)

    @property
    def line(self) -> int:
        return self.source.line

    def line_of(self, key: str) -> int:
        return self.source.lines.get(key, self.source.line)

    def file_of(self, key: str) -> str:
        return self.source.files.get(key, self.file) if isinstance(self.source, Traced) else self.file

    def path_of(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def wrong(self, key: str, message: str, hint: str | None = None) -> Invalid:
        """Return an error that names file and line."""
        return Invalid(
            f"`{self.path_of(key)}`: {message}",
            hint=hint,
            file=self.file_of(key),
            line=self.line_of(key),
            path=self.path_of(key),
        )

    # Values.

    def take(self, key: str, default: Any = None) -> Any:
        """Return the value as plain data."""
        if key not in self.source:
            return default
        self._mark(key, "whole")
        return plain(self.source[key])

    def text(self, key: str, default: str | None = None) -> str | None:
        """Return a scalar as it was typed: `1.10` stays `1.10`."""
        value = self.source.get(key)
        if isinstance(value, dict | list):
            raise self.wrong(key, "expected text, not a mapping or a list")
        self._mark(key, "whole")
        return default if value is None else scalar_text(self.source.texts.get(key), value)

    def whole(self, key: str, default: int | None = None) -> int | None:
        found = self._as(key, int, "expected an integer")
        return default if found is None else found

    def number(self, key: str, default: float | None = None) -> float | None:
        found = self._as(key, float, "expected a number")
        return default if found is None else found

    def flag(self, key: str, default: bool = False) -> bool:
        words: dict[str, bool] = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}
        text = self.text(key)
        if not text:
            return default
        if text.lower() not in words:
            raise self.wrong(key, f"{text[:40]!r} is not true or false")
        return words[text.lower()]

    def texts(self, key: str) -> list[str]:
        """Return a list of scalars; a single scalar counts as a list of one."""
        value = self.source.get(key)
        if not isinstance(value, list):
            text = self.text(key)
            return [] if text is None else [text]
        self._mark(key, "whole")
        typed = value.texts if isinstance(value, List) else {}
        if any(isinstance(each, dict | list) for each in value):
            raise self.wrong(key, "expected a list of texts")
        return [scalar_text(typed.get(index), each) for index, each in enumerate(value)]

    def text_map(self, key: str) -> dict[str, str]:
        """Return a mapping with free names, such as labels; it counts as one key."""
        value = self.source.get(key)
        if value is None:
            self._mark(key, "whole")
            return {}
        if not isinstance(value, dict) or any(isinstance(each, dict | list) for each in value.values()):
            raise self.wrong(key, "expected a mapping of texts")
        self._mark(key, "whole")
        typed = value.texts if isinstance(value, Map) else {}
        return {name: scalar_text(typed.get(name), each) for name, each in value.items()}

    # Parts.

    def part(self, key: str) -> "Part":
        """Return the mapping under a key; an empty mapping if the key is absent."""
        value = self.source.get(key)
        if value is None:
            self._mark(key, "whole")
            return Part(self.ledger, Map(self.line), self.file_of(key), self.path_of(key))
        if not isinstance(value, Map):
            raise self.wrong(key, "expected a mapping")
        self._mark(key, "opened")
        return Part(self.ledger, value, self.file_of(key), self.path_of(key))

    def parts(self, key: str) -> list["Part"]:
        """Return the mappings in the list under a key."""
        value = self.source.get(key)
        if value is None:
            self._mark(key, "whole")
            return []
        if not isinstance(value, list) or not all(isinstance(each, Map) for each in value):
            raise self.wrong(key, "expected a list of mappings")
        self._mark(key, "opened")
        return list(self.inside(key))

    def mixed(self, key: str) -> "list[str | Part]":
        """Return a list of short forms (texts) and long forms (parts); a single value counts as a list of one."""
        value = self.source.get(key)
        if not isinstance(value, dict | list):
            return list(self.texts(key))
        self._mark(key, "opened")
        found: list[str | Part] = []
        for index, each in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(each, Map):
                path = f"{self.path_of(key)}[{index}]" if isinstance(value, list) else self.path_of(key)
                found.append(Part(self.ledger, each, self.file_of(key), path))
            elif isinstance(each, dict | list):
                raise self.wrong(key, "expected a list of texts and mappings")
            else:
                found.append(scalar_text(value.texts.get(index) if isinstance(value, List) else None, each))
        return found

    def entries(self, key: str) -> list[tuple[str, "Part"]]:
        """Return the named mappings under a key; a name without a value has an empty mapping. The names are accounted
        for."""
        under = self.part(key)
        return [(name, under.part(name)) for name in under]

    def inside(self, key: str) -> Iterator["Part"]:
        """Return the mapping, or the mappings in the list, under a key, without accounting for it."""
        value, file, path = self.source[key], self.file_of(key), self.path_of(key)
        yield from _maps(value, path, lambda found, at: Part(self.ledger, found, file, at))

    # Keys that are not mapped, or mapped to something similar.

    def drop(self, key: str, why: str, hint: str = "") -> None:
        if key in self.source:
            self._mark(key, "dropped")
            self.note(key, "dropped", why, hint)

    def drop_rest(self, why: str, hint: str = "") -> None:
        """Drop all keys that are not accounted for yet."""
        for key in self.source:
            if (id(self.source), key) not in self.ledger.states:
                self.drop(key, why, hint)

    def drop_all(self, key: str, why: str, hint: str = "") -> None:
        """Drop the whole mapping with one note, at this key."""
        for each in self.source:
            if self.ledger.states.get((id(self.source), each)) != "ignored":
                self._mark(each, "dropped")
        self.note(key, "dropped", why, hint)

    def drop_item(self, key: str, index: int, why: str, hint: str = "") -> None:
        """Drop one item of a list whose other items were read."""
        value = self.source[key]
        line = value.lines[index] if isinstance(value, List) and index < len(value.lines) else self.line_of(key)
        self.ledger.items += 1
        self.ledger.note(self.file_of(key), line, f"{self.path_of(key)}[{index}]", "dropped", why, hint)

    def guess(self, key: str, what: str, hint: str = "") -> None:
        """Add a note to a value that was read."""
        self.note(key, "guessed", what, hint)

    def ignore(self, key: str) -> None:
        """Account for a key without an effect in its own tool, such as an extension."""
        self._mark(key, "ignored")

    def note(self, key: str, fate: Fate, text: str, hint: str = "") -> None:
        self.ledger.note(self.file_of(key), self.line_of(key), self.path_of(key), fate, text, hint)

    def _mark(self, key: str, state: _State) -> None:
        if key in self.source:
            self.ledger.mark(self.source, key, state)

    def _as(self, key: str, kind: Callable[[str], Any], problem: str) -> Any:
        text = self.text(key)
        if text is None:
            return None
        try:
            return kind(text)
        except ValueError:
            raise self.wrong(key, f"{problem}, not {text[:40]!r}") from None


def plain(value: Any) -> Any:
    """Return the value without line numbers."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def scalar_text(typed: str | None, value: Any) -> str:
    """Return a scalar as text, as it was typed where that is known; null is not text."""
    if value is None:
        return ""
    if typed is not None:
        return typed
    return str(value).lower() if isinstance(value, bool) else str(value)


def _maps(value: Any, path: str, made: Callable[[Map, str], Part]) -> Iterator[Part]:
    if isinstance(value, Map):
        yield made(value, path)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            title = getattr(each, "title", "")
            yield from _maps(each, f"{path}.{title}" if title else f"{path}[{index}]", made)


def _size(value: Any) -> int:
    """Return the number of keys below a value."""
    if isinstance(value, dict):
        return len(value) + sum(_size(each) for each in value.values())
    return sum(_size(each) for each in value) if isinstance(value, list) else 0
