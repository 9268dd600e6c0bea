"""YAML 1.2 (`no` is a word, `010` is ten) with limits and with the line of every key.

Duplicate keys are errors, aliases count as if they were written out, and JSON is a subset.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

BYTES_MOST = 1 << 20
NODES_MOST = 100_000
"""Scalars, lists and mappings of one text, with every alias counted as what it stands for."""
DEPTH_MOST = 64
SPREAD_MOST = 4
"""Times its own length that the scalars of a text may have, with every alias counted as what it stands for."""

_TAG = "tag:yaml.org,2002:"
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {word: truth for truth in (True, False) for word in (f"{truth}".lower(), f"{truth}", f"{truth}".upper())}
_INT = re.compile(r"[-+]?[0-9]+")
_BASES = {"0o": (8, re.compile(r"[0-7]+")), "0x": (16, re.compile(r"[0-9a-fA-F]+"))}
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_FLOAT_WORD = re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))")
_DIGITS_MOST = 100
_SURROGATES = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")


class Malformed(ValueError):
    """The text is not YAML, or over a bound; `line` counts from 1."""

    def __init__(self, message: str, line: int, *, hint: str | None = None, over: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.hint = hint
        self.over = over
        """Whether the text is above a limit, but may be valid YAML."""


class Map(dict[str, Any]):
    """A mapping with the lines of its keys and the original text of its scalars."""

    __slots__ = ("line", "lines", "texts")

    def __init__(self, line: int = 0) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}
        self.texts: dict[str, str] = {}

    def set(self, key: str, value: Any, line: int, text: str | None = None) -> None:
        self[key] = value
        self.lines[key] = line
        if text is not None:
            self.texts[key] = text

    def take(self, key: str, source: "Map", name: str | None = None) -> None:
        """Copy one entry with its line and its text, under another name if given."""
        self.set(name or key, source[key], source.lines.get(key, source.line), source.texts.get(key))


class List(list[Any]):
    """A list with the lines of its items and the original text of its scalars."""

    __slots__ = ("line", "lines", "texts")

    def __init__(self, line: int = 0) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []
        self.texts: dict[int, str] = {}

    def add(self, value: Any, line: int, text: str | None = None) -> None:
        if text is not None:
            self.texts[len(self)] = text
        self.append(value)
        self.lines.append(line)


class Tagged(NamedTuple):
    """A value with one of the requested tags."""

    tag: str
    value: Any
    text: str | None


class Parsed(NamedTuple):
    """One document: its value, and its first line."""

    value: Any
    line: int


class _Node(NamedTuple):
    value: Any
    line: int
    text: str | None
    """How a plain scalar was written; None for everything else."""
    size: int
    plain: bool = False
    letters: int = 0
    """Characters of all its scalars."""


def load_all(
    source: str | bytes,
    *,
    bytes_most: int = BYTES_MOST,
    nodes_most: int = NODES_MOST,
    depth_most: int = DEPTH_MOST,
    tags: frozenset[str] = frozenset(),
) -> list[Parsed]:
    """Parse all documents of a text; empty ones are skipped. A value with one of these `tags` becomes a `Tagged`."""
    text = _text(source, bytes_most)
    try:
        return _Builder(text, nodes_most, depth_most, tags, letters_most=SPREAD_MOST * bytes_most).documents()
    except yaml.YAMLError as error:
        as_yaml = _json_as_yaml(text)
        if as_yaml is not None and as_yaml != text:
            return load_all(as_yaml, bytes_most=2 * bytes_most, nodes_most=nodes_most, depth_most=depth_most)
        raise _malformed(error, text) from None


def dump(value: Any) -> str:
    """Write plain data as YAML that `load_all` reads back unchanged."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _text(source: str | bytes, most: int) -> str:
    size = len(source) if isinstance(source, bytes) else len(source.encode("utf-8", "surrogatepass"))
    if size > most:
        raise Malformed(
            f"{size:,} bytes; at most {most:,} are allowed", 1, over=True, hint="split it into several files"
        )
    text = (source if isinstance(source, str) else _decoded(source)).removeprefix("\ufeff")
    odd = _UNPRINTABLE.search(text)
    if odd:
        line = text.count("\n", 0, odd.start()) + 1
        raise Malformed(
            f"the character U+{ord(odd[0]):04X} is not allowed", line, hint="check that this is not a binary file"
        )
    return text


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Malformed("not valid UTF-8 text", line, hint="check that this is not a binary file") from None


@dataclass(slots=True)
class _Builder:
    """Reads parser events one at a time, so that a limit stops the parser, too."""

    text: str
    nodes_most: int
    depth_most: int
    tags: frozenset[str]
    letters_most: int
    nodes: int = 0
    letters: int = 0
    anchors: dict[str, _Node | None] = field(default_factory=dict)
    """Anchored nodes; None while a node is being read, so that an alias inside it is an error."""

    def documents(self) -> list[Parsed]:
        found = []
        events: Iterator[Any] = iter(yaml.parse(self.text, Loader=yaml.CBaseLoader))
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                self.anchors = {}
                node = self._node(next(events), events, 1)
                if node.value is not None:
                    found.append(Parsed(node.value, node.line))
        return found

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> _Node:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), line)
        self._count(1, len(event.value) if isinstance(event, yaml.ScalarEvent) else 0, line)
        if depth > self.depth_most:
            raise Malformed(f"nested deeper than {self.depth_most} levels", line, over=True)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        tag = event.tag
        if tag in self.tags:
            event.tag = None
            event.implicit = (not event.style, True) if isinstance(event, yaml.ScalarEvent) else True
        if isinstance(event, yaml.ScalarEvent):
            node = _scalar(event, line)._replace(letters=len(event.value))
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(event, line, events, depth)
        else:
            node = self._mapping(event, line, events, depth)
        if tag in self.tags:
            node = node._replace(value=Tagged(tag, node.value, node.text), text=None, plain=False)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _alias(self, anchor: str, line: int) -> _Node:
        if anchor not in self.anchors:
            raise Malformed(f"the alias *{anchor} is not defined", line, hint=f"define it before, with &{anchor}")
        node = self.anchors[anchor]
        if node is None:
            raise Malformed(f"the alias *{anchor} refers to a value that contains it", line)
        self._count(node.size, node.letters, line)
        return node._replace(line=line)

    def _count(self, more: int, letters: int, line: int) -> None:
        self.nodes += more
        self.letters += letters
        if self.letters > self.letters_most:
            message = f"more than {self.letters_most:,} characters, with aliases written out"
            raise Malformed(message, line, over=True, hint="use aliases for smaller values")
        if self.nodes > self.nodes_most:
            message = f"more than {self.nodes_most:,} values, with aliases written out"
            raise Malformed(message, line, over=True, hint="split it into several")

    def _sequence(self, event: Any, line: int, events: Iterator[Any], depth: int) -> _Node:
        _check_tag(event, "seq", line)
        before, letters = self.nodes, self.letters
        items = List(line)
        for inner in events:
            if isinstance(inner, yaml.SequenceEndEvent):
                break
            node = self._node(inner, events, depth + 1)
            items.add(node.value, node.line, node.text)
        return _Node(items, line, None, self.nodes - before + 1, letters=self.letters - letters)

    def _mapping(self, event: Any, line: int, events: Iterator[Any], depth: int) -> _Node:
        _check_tag(event, "map", line)
        before, letters = self.nodes, self.letters
        entries = Map(line)
        merged: list[Map] = []
        for inner in events:
            if isinstance(inner, yaml.MappingEndEvent):
                break
            key = self._node(inner, events, depth + 1)
            word = _key(key)
            value = self._node(next(events), events, depth + 1)
            if word == "<<" and key.plain:
                merged += _merged(value)
                continue
            if word in entries:
                raise Malformed(f"the key `{word}` is defined twice, first in line {entries.lines[word]}", key.line)
            entries.set(word, value.value, key.line, value.text)
        for other in merged:
            for word in other:
                if word not in entries:
                    entries.take(word, other)
        return _Node(entries, line, None, self.nodes - before + 1, letters=self.letters - letters)


def _key(node: _Node) -> str:
    if isinstance(node.value, str):
        return node.value
    if node.text is None:
        raise Malformed("a key must be text, not a list or a mapping", node.line)
    return node.text


def _merged(value: _Node) -> list[Map]:
    """Return the mappings that `<<: *defaults` or `<<: [*one, *two]` merges; earlier ones take precedence."""
    found = [value.value] if isinstance(value.value, Map) else value.value
    if not isinstance(found, list) or not all(isinstance(each, Map) for each in found):
        raise Malformed("`<<` takes a mapping, or a list of mappings", value.line)
    return list(found)


def _scalar(event: Any, line: int) -> _Node:
    text: str = event.value
    tag: str | None = event.tag
    plain = tag is None and event.implicit[0]
    if plain:
        value = _resolve(text, line)
        return _Node(value, line, None if isinstance(value, str) else text, 1, plain=True)
    if tag is None or tag in {"!", _TAG + "str"}:
        return _Node(text, line, None, 1)
    wanted = {"int": int, "float": (float, int), "bool": bool, "null": type(None)}.get(tag.removeprefix(_TAG))
    if wanted is None:
        raise Malformed(f"the tag {_shown(tag)} is not allowed", line, hint="write the value without a tag")
    value = _resolve(text, line)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):  # type: ignore[arg-type]
        raise Malformed(f"{text[:40]!r} does not match its tag {_shown(tag)}", line)
    return _Node(value, line, text, 1)


def _resolve(text: str, line: int) -> Any:
    """Resolve a plain scalar by the core schema of YAML 1.2."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    first = text[0]
    if first not in "-+.0123456789":
        return text
    base = _BASES.get(text[:2])
    if base is not None and base[1].fullmatch(text, 2):
        return int(_short(text, line)[2:], base[0])
    if _INT.fullmatch(text):
        return int(_short(text, line))
    if _FLOAT.fullmatch(text):
        return float(_short(text, line))
    if _FLOAT_WORD.fullmatch(text):
        return float(text.replace(".", "").lower())
    return text


def _short(number: str, line: int) -> str:
    if len(number) > _DIGITS_MOST:
        raise Malformed(
            f"the number has {len(number)} digits; at most {_DIGITS_MOST} are allowed",
            line,
            hint="put it in quotes if it is text",
        )
    return number


def _check_tag(event: Any, kind: str, line: int) -> None:
    if event.tag not in {None, "!", _TAG + kind}:
        raise Malformed(f"the tag {_shown(event.tag)} is not allowed", line, hint="write the value without a tag")


def _shown(tag: str) -> str:
    return "!!" + tag.removeprefix(_TAG) if tag.startswith(_TAG) else tag[:40]


def _json_as_yaml(text: str) -> str | None:
    """Rewrite valid JSON that the YAML scanner rejects (tabs, surrogate pairs); None if the text is not JSON."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None

    def joined(match: re.Match[str]) -> str:
        high, low = int(match[2], 16), int(match[3], 16)
        return f"{match[1]}\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"

    return _SURROGATES.sub(joined, text.replace("\t", " "))


def _malformed(error: yaml.YAMLError, text: str) -> Malformed:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    if mark is None:
        return Malformed(f"not YAML: {problem}", 1)
    lines = text.splitlines()
    here = lines[mark.line] if mark.line < len(lines) else ""
    hint = None
    if "\t" in here[: mark.column + 1]:
        hint = "indent with spaces, not with tabs"
    elif "mapping values are not allowed" in problem:
        hint = "put a text with `: ` in quotes, and check the indentation"
    elif "did not find expected key" in problem:
        hint = "keys of one mapping must start in the same column: check the indentation here and above"
    elif "did not find expected ','" in problem:
        hint = "close the bracket, or put a text with brackets in quotes"
    # An unclosed bracket is detected at the end of the text; its start is the more useful position.
    context = getattr(error, "context_mark", None)
    line = context.line if context is not None and mark.line >= len(lines) else mark.line
    return Malformed(f"not YAML: {problem}", line + 1, hint=hint)


class _Dumper(yaml.CSafeDumper):
    """Quotes text that a reader of YAML 1.1 or 1.2 might read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_text(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text and not _UNPRINTABLE.search(text) else None
    if style is None and text and not isinstance(_quiet(text), str):
        style = '"'
    return dumper.represent_scalar(_TAG + "str", text, style=style)


def _quiet(text: str) -> Any:
    try:
        return _resolve(text, 0)
    except Malformed:
        return 0


_Dumper.add_representer(str, _write_text)
