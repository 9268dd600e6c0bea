"""Merges two Compose mappings, by the rules of `extends` and of several files."""

from typing import Any

from mandor.importers.part import Traced
from mandor.lib.yaml12 import List, Map

RESET, OVERRIDE = "!reset", "!override"
TAGS = frozenset({RESET, OVERRIDE})
_REPLACED = frozenset({"command", "entrypoint", "test"})
_PAIRS = frozenset({"environment", "labels", "args", "sysctls", "annotations", "driver_opts"})
_NAMED = frozenset({"depends_on", "networks", "models"})
_BY_TARGET = frozenset({"volumes", "devices", "configs", "secrets"})


class Layer(Traced):
    """A mapping that overrides others."""

    __slots__ = ("tags",)

    def __init__(self, line: int = 0) -> None:
        super().__init__(line)
        self.tags: dict[str, str] = {}
        """Tags by key: `!reset` removes the value below, `!override` replaces it."""


def merged(base: Map, over: Map) -> Layer:
    """Return `base` overridden by `over`."""
    made = Layer(over.line or base.line)
    below, above = (each.tags if isinstance(each, Layer) else {} for each in (base, over))
    made.tags = {**below, **{key: OVERRIDE for key in over if below.get(key) == RESET}, **above}
    for source in (base, over):
        for key in source:
            if source is base and key in above:
                continue
            value = source[key]
            if source is over and key in base and key not in above:
                value = _combined(key, base[key], value)
            made.set(key, value, source.lines.get(key, source.line), source.texts.get(key))
            if not isinstance(value, dict | list) and key not in source.texts:
                made.texts.pop(key, None)
            if isinstance(source, Traced) and key in source.files:
                made.files[key] = source.files[key]
    return made


def _combined(key: str, base: Any, over: Any) -> Any:
    if key in _REPLACED:
        return over
    if over is None:  # An empty mapping or list removes nothing: `!reset` does.
        return base if isinstance(base, Map | List) else over
    if key == "logging" and _of_another_driver(base, over):
        return over
    if key == "extra_hosts":  # One name can have several addresses.
        return _joined(_listed(base), _listed(over), _itself)
    if key in _PAIRS and isinstance(base, Map | List) and isinstance(over, Map | List):
        return merged(_pairs(base), _pairs(over))
    if key in _NAMED and isinstance(base, Map | List) and isinstance(over, Map | List):
        return merged(named(base), named(over))
    if isinstance(base, Map) and isinstance(over, Map):
        return merged(base, over)
    if isinstance(base, List) and isinstance(over, List):
        return _joined(base, over, _target if key in _BY_TARGET else _itself)
    return over


def _of_another_driver(base: Any, over: Any) -> bool:
    """Return whether the options belong to another log driver."""
    drivers = [each.get("driver") for each in (base, over) if isinstance(each, Map)]
    return None not in drivers and len(set(drivers)) > 1


def hosts_of(value: Any) -> list[str]:
    """Return host names with their addresses, from a list of NAME:ADDRESS or a mapping."""
    if not isinstance(value, dict):
        return [str(each) for each in (value if isinstance(value, list) else [] if value is None else [value])]
    return [
        f"{name}={each}"
        for name, given in value.items()
        for each in (given if isinstance(given, list) else [given or ""])
    ]


def _listed(value: Any) -> List:
    line = value.line if isinstance(value, Map | List) else 0
    made = List(line)
    for each in hosts_of(value):
        made.add(each, line)
    return made


def named(value: Map | List) -> Map:
    """Return `[a, b]` as `{a: , b: }`."""
    if isinstance(value, Map):
        return value
    made = Map(value.line)
    for index, each in enumerate(value):
        made.set(str(each), None, value.lines[index])
    return made


def _pairs(value: Map | List) -> Map:
    """Return `[A=1, B]` as `{A: "1", B: }`."""
    if isinstance(value, Map):
        return value
    made = Map(value.line)
    for index, each in enumerate(value):
        name, equals, rest = str(each).partition("=")
        made.set(name, rest if equals else None, value.lines[index])
    return made


def _joined(base: List, over: List, identity: Any) -> List:
    made = List(over.line)
    replaced = {identity(each) for each in over}
    for source in (base, over):
        for index, each in enumerate(source):
            if source is over or identity(each) not in replaced:
                made.add(each, source.lines[index], source.texts.get(index))
    return made


def _itself(item: Any) -> str:
    return repr(item)


def _target(item: Any) -> str:
    """Return the path in the container: two mounts at one path are the same mount."""
    if isinstance(item, dict):
        return str(item.get("target", item.get("source", "")))
    words = str(item).split(":")
    return words[1] if len(words) > 1 else words[0]
