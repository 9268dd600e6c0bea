"""Converts plain data into model values and collects all errors with their lines and paths.

The reader follows the types of the model. Short forms (`http: 80` for a port, a rule as plain text) are expanded first;
a number where text is expected is read as it was typed.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, Struct

from mandor.lib.words import did_you_mean
from mandor.lib.yaml12 import List, Map
from mandor.model.codec import from_plain
from mandor.model.group import AUTO, Alternative, Group, Port
from mandor.model.lifecycle import Disruption, Reschedule
from mandor.model.meta import InvalidField
from mandor.model.placement import KINDS, Placement, Where
from mandor.model.schedule import Schedule
from mandor.model.service import ServicePort
from mandor.model.task import Task
from mandor.model.variant import TaskVariant
from mandor.model.workload import WorkloadSpec

MISTAKES_MOST = 50

_TASK_LATER = frozenset[str]()
LATER: dict[type, frozenset[str]] = {
    WorkloadSpec: frozenset(),
    Group: frozenset({"services"}),
    Placement: frozenset({"clusters"}),
    Task: _TASK_LATER,
    TaskVariant: _TASK_LATER,
    Alternative: _TASK_LATER,
    Reschedule: frozenset({"unlimited"}),
    Disruption: frozenset({"min_run", "move"}),
}
"""Keys of the manifest format that this version does not support yet."""

SYNONYMS = {
    "cmd": "command",
    "cpu": "resources: {cpu: …}",
    "cpus": "resources: {cpu: …}",
    "driver": "engine",
    "entrypoint": "command",
    "environment": "env",
    "healthcheck": "health",
    "instances": "replicas",
    "limits": "resources: {limits: …}",
    "liveness": "health",
    "livenessProbe": "health",
    "mem": "resources: {memory: …}",
    "memory": "resources: {memory: …}",
    "readinessProbe": "readiness",
    "startupProbe": "startup",
    "restart_policy": "restart: {policy: …}",
    "scale": "replicas",
    "user": "security: {user: …}",
    "workdir": "working_dir",
}
"""Names of keys in other tools, with the corresponding keys of manifests."""

_COMMANDS = frozenset({"command", "args"})
_EXPECTED = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<got>[^`]+)`")
_BOUND = re.compile(r"Expected `(?:int|float)` (?P<side><=|>=) (?P<bound>\S+)")
_LENGTH = re.compile(r"Expected `str` of length <= (?P<most>\d+)")
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}


class Mistake(NamedTuple):
    line: int
    path: str
    text: str
    hint: str | None = None

    @property
    def message(self) -> str:
        return f"`{self.path}`: {self.text}" if self.path else self.text


class _Failed:
    """Marks a value that has errors."""


FAILED = _Failed()


@dataclass(slots=True)
class Reader:
    mistakes: list[Mistake] = field(default_factory=list)
    partial: bool = False
    """Set when keys were rejected earlier: errors that only follow from their absence are not reported."""

    def wrong(self, line: int, path: str, text: str, hint: str | None = None) -> _Failed:
        if len(self.mistakes) < MISTAKES_MOST:
            self.mistakes.append(Mistake(line, path, text, hint))
        return FAILED

    def read(self, value: Any, wanted: Any, path: str, line: int, text: str | None = None) -> Any:
        """Return the value as the wanted type, or `FAILED` after recording the errors. `text` is the value as it was
        typed.
        """
        wanted = _without_mark(wanted)
        origin = get_origin(wanted)
        if origin in {Union, UnionType}:
            wanted = _choose(value, get_args(wanted))
            if wanted is NoneType:
                return None
            origin = get_origin(wanted)
        if isinstance(wanted, type) and issubclass(wanted, Struct):
            return self._struct(_SHORT.get(wanted, _as_it_is)(value, line, text), wanted, path, line)
        if value is None and wanted is not Any:
            return self.wrong(line, path, "has no value", "remove the key, or set a value")
        if origin is dict:
            return self._mapping(value, get_args(wanted)[1], path, line)
        if origin is tuple:
            return self._sequence(value, get_args(wanted)[0], path, line)
        if origin is Literal:
            return self._word(value, get_args(wanted), path, line)
        if wanted is Any:
            return _plain(value)
        if _is_text(wanted) and text is not None:
            value = text
        return self._leaf(value, wanted, path, line)

    def _struct(self, value: Any, wanted: type[Struct], path: str, line: int) -> Any:
        if not isinstance(value, dict):
            return self.wrong(line, path, f"expected a mapping, got {_what(value)}")
        before = len(self.mistakes)
        entries = _as_map(value, line)
        fields = _fields(wanted)
        self._check_keys(entries, wanted, path)
        kept: dict[str, Any] = {}
        for name, (kind, required) in fields.items():
            if name in entries:
                place = entries.lines.get(name, line)
                kept[name] = self.read(entries[name], kind, _join(path, name), place, entries.texts.get(name))
            elif required:
                self.wrong(line, path, f"`{name}` is missing")
        if self.partial or len(self.mistakes) > before or len(self.mistakes) >= MISTAKES_MOST:
            return FAILED
        try:
            return wanted(**{_names(wanted)[name]: each for name, each in kept.items()})
        except InvalidField as error:
            at, where = _at(entries, error.at, line)
            return self.wrong(at, _join(path, where) if where else path, str(error), error.hint)
        except ValueError as error:
            return self.wrong(line, path, str(error))

    def _check_keys(self, entries: Map, wanted: type, path: str) -> None:
        known = _fields(wanted)
        for key in entries:
            if key not in known:
                self.unknown(
                    key, set(known), LATER.get(wanted, frozenset()), path, entries.lines.get(key, entries.line)
                )

    def unknown(self, key: str, known: set[str], later: frozenset[str], path: str, line: int) -> None:
        if key in later:
            self.wrong(line, path, f"`{key}` is not supported yet", "remove it, or upgrade mandor")
            return
        if len(self.mistakes) >= MISTAKES_MOST:
            return
        instead = SYNONYMS.get(key, "")
        named = instead and instead.partition(":")[0] in known
        self.wrong(
            line, path, f"unknown key `{_cut(key)}`", f"write `{instead}`" if named else did_you_mean(key, known)
        )

    def _mapping(self, value: Any, wanted: Any, path: str, line: int) -> Any:
        if not isinstance(value, dict):
            return self.wrong(line, path, f"expected a mapping, got {_what(value)}")
        entries = _as_map(value, line)
        before = len(self.mistakes)
        kept = {
            key: self.read(each, wanted, _join(path, key), entries.lines.get(key, line), entries.texts.get(key))
            for key, each in entries.items()
        }
        return kept if len(self.mistakes) == before else FAILED

    def _sequence(self, value: Any, wanted: Any, path: str, line: int) -> Any:
        if not isinstance(value, list):
            hint = None
            if path.rpartition(".")[2] in _COMMANDS and isinstance(value, str):
                hint = f"write it as a list: [{', '.join(value.split()[:3])}{', …' if len(value.split()) > 3 else ''}]"
            return self.wrong(line, path, f"expected a list, got {_what(value)}", hint)
        lines = value.lines if isinstance(value, List) else [line] * len(value)
        texts = value.texts if isinstance(value, List) else {}
        before = len(self.mistakes)
        kept = tuple(
            self.read(each, wanted, f"{path}[{index}]", lines[index], texts.get(index))
            for index, each in enumerate(value)
        )
        return kept if len(self.mistakes) == before else FAILED

    def _word(self, value: Any, choices: tuple[Any, ...], path: str, line: int) -> Any:
        if isinstance(value, str) and value in choices:
            return choices[choices.index(value)]
        shown = f"`{_cut(value)}`" if isinstance(value, str) else _what(value)
        hint = did_you_mean(str(value), choices)
        text = f"{shown} is not one of {', '.join(choices)}"
        return self.wrong(line, path, text, hint if hint.startswith("did") else None)

    def _leaf(self, value: Any, wanted: Any, path: str, line: int) -> Any:
        try:
            return from_plain(value, wanted)
        except msgspec.ValidationError as error:
            return self.wrong(line, path, _in_words(str(error), value))


# Short forms.


def _long_port(value: Any, line: int, text: str | None) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return _pair("port", value, line, text)
    if value == AUTO:
        return _pair("host", value, line, text)
    return value


def _long_service_port(value: Any, line: int, text: str | None) -> Any:
    return _pair("port", value, line, text) if isinstance(value, int) and not isinstance(value, bool) else value


def _long_where(value: Any, line: int, text: str | None) -> Any:
    return _pair("rule", value, line, text) if isinstance(value, str) else value


def _long_placement(value: Any, line: int, text: str | None) -> Any:
    """Record the order in which the kinds of rules are written, because it is significant."""
    if not isinstance(value, dict) or "order" in value:
        return value
    source = _as_map(value, line)
    written = [key for key in source if key in KINDS]
    if written == sorted(written, key=KINDS.index):
        return value
    placement, order = Map(source.line), List(source.line)
    for key in source:
        placement.take(key, source)
    for key in written:
        order.add(key, source.lines.get(key, line), key)
    placement.set("order", order, source.line)
    return placement


def _long_group(value: Any, line: int, text: str | None) -> Any:
    """Accept `count` for `replicas`, and a single engine without a list."""
    if not isinstance(value, dict):
        return value
    source = _as_map(value, line)
    group = Map(source.line)
    for key in source:
        if key == "count" and "replicas" not in source:
            group.take(key, source, "replicas")
        else:
            group.take(key, source)
    return _listed("engine", group, line)


def _long_engine(value: Any, line: int, text: str | None) -> Any:
    """Accept a single engine without a list."""
    return _listed("engine", _as_map(value, line), line) if isinstance(value, dict) else value


def _long_schedule(value: Any, line: int, text: str | None) -> Any:
    """Accept `schedule: "*/5 * * * *"`, and a single expression without a list."""
    source = _as_map(value, line) if isinstance(value, dict) else _pair("cron", value, line, text)
    return _listed("cron", source, line)


def _listed(name: str, source: Map, line: int) -> Map:
    """Return the mapping with a single text under this key put into a list."""
    if not isinstance(source.get(name), str):
        return source
    made = Map(source.line)
    for key in source:
        if key == name:
            texts = List(source.lines.get(key, line))
            texts.add(source[key], texts.line)
            made.set(key, texts, texts.line)
        else:
            made.take(key, source)
    return made


def _as_it_is(value: Any, line: int, text: str | None) -> Any:
    return value


_SHORT: dict[type, Callable[[Any, int, str | None], Any]] = {
    Port: _long_port,
    ServicePort: _long_service_port,
    Where: _long_where,
    Placement: _long_placement,
    Group: _long_group,
    Schedule: _long_schedule,
    Alternative: _long_engine,
}


def _pair(key: str, value: Any, line: int, text: str | None) -> Map:
    made = Map(line)
    made.set(key, value, line, text)
    return made


# Types.


@cache
def _fields(wanted: type[Struct]) -> dict[str, tuple[Any, bool]]:
    return {each.encode_name: (each.type, _required(each)) for each in msgspec.structs.fields(wanted)}


@cache
def _names(wanted: type[Struct]) -> dict[str, str]:
    """Map names in manifests to field names: `scoringStrategy` is `scoring_strategy`."""
    return {each.encode_name: each.name for each in msgspec.structs.fields(wanted)}


def _required(each: msgspec.structs.FieldInfo) -> bool:
    return each.default is NODEFAULT and each.default_factory is NODEFAULT


def _choose(value: Any, options: tuple[Any, ...]) -> Any:
    """Return the only option of a union that fits the shape of the value, else the whole union."""
    if value is None and NoneType in options:
        return NoneType
    rest = tuple(option for option in options if option is not NoneType)
    structs = tuple(option for option in rest if isinstance(option, type) and issubclass(option, Struct))
    if structs and len(rest) > 1:
        rest = structs if isinstance(value, dict) else tuple(option for option in rest if option not in structs)
    if len(rest) == 1:
        return rest[0]
    return Annotated[Union[rest], None]  # noqa: UP007 - built at run time


def _without_mark(wanted: Any) -> Any:
    """Return the type without `needs(FEATURE)`; limits of a type stay."""
    if get_origin(wanted) is not Annotated:
        return wanted
    base, *marks = get_args(wanted)
    limits = [each for each in marks if not isinstance(each, Meta) or each != Meta(extra=each.extra)]
    return Annotated[base, *limits] if limits else base


def _is_text(wanted: Any) -> bool:
    return wanted is str or (get_origin(wanted) is Annotated and get_args(wanted)[0] is str)


def _as_map(value: dict[str, Any], line: int) -> Map:
    if isinstance(value, Map):
        return value
    made = Map(line)
    for key, each in value.items():
        made.set(key, each, line)
    return made


def _at(source: Map, keys: tuple[str, ...], line: int) -> tuple[int, str]:
    """Return the line of a nested key, or of its closest written parent, and the path to it."""
    walked: list[str] = []
    value: Any = source
    for key in keys:
        if isinstance(value, List) and key.isdecimal() and int(key) < len(value):
            line, value = value.lines[int(key)], value[int(key)]
            walked[-1] += f"[{key}]"
        elif isinstance(value, Map) and key in value:
            line, value = value.lines.get(key, line), value[key]
            walked.append(key)
        else:
            break
    return line, ".".join(walked)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


# Messages.


def _join(path: str, key: str) -> str:
    return f"{path}.{_cut(key)}" if path else _cut(key)


def _cut(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[:most] + "…"


def _what(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"the number {_cut(str(value))}"
    if isinstance(value, str):
        return f"the text {_cut(value)!r}"
    return "a mapping" if isinstance(value, dict) else "a list"


def _in_words(message: str, value: Any) -> str:
    """Reword an error of msgspec; errors of the model's own checks stay unchanged."""
    if found := _EXPECTED.fullmatch(message):
        wanted = " or ".join(_WORDS.get(word, word) for word in found["wanted"].split(" | ") if word != "null")
        return f"expected {wanted}, got {_what(value)}"
    if found := _BOUND.fullmatch(message):
        above = found["side"] == "<="
        return f"{_cut(str(value))} is {'above the maximum' if above else 'below the minimum'} of {found['bound']}"
    if found := _LENGTH.fullmatch(message):
        return f"{len(value):,} characters; at most {int(found['most']):,} are allowed"
    return message
