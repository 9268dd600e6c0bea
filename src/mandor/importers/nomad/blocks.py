"""Blocks of a job, single, repeated and named; and conversion of Nomad's amounts."""

import re
from typing import Any

from mandor.importers.nomad.evaluation import Titled
from mandor.importers.part import Part
from mandor.lib.quantity import Seconds
from mandor.lib.yaml12 import Map

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def blocks(part: Part, key: str) -> list[Part]:
    """Return all blocks of one kind; an attribute with a mapping counts as one."""
    return [part.part(key)] if isinstance(part.peek(key), Map) else part.parts(key)


def block(part: Part, key: str) -> Part:
    """Return the only block of its kind; an empty one if it is absent."""
    found = blocks(part, key)
    if len(found) > 1:
        raise part.wrong(key, f"there is one `{key}` only")
    return found[0] if found else Part(part.ledger, Map(part.line), part.file, part.path_of(key))


def label(part: Part, kind: str) -> str:
    source = part.source
    if not isinstance(source, Titled) or len(source.labels) != 1:
        raise part.wrong(kind, f'a {kind} has a name: `{kind} "NAME" {{ … }}`')
    return source.labels[0]


def pairs(part: Part, key: str) -> dict[str, str]:
    """Return names and values of a block or a mapping with free names."""
    value = part.peek(key)
    if not isinstance(value, list):
        return part.text_map(key)
    found: dict[str, str] = {}
    for each in part.parts(key):
        for name in each:
            found[name] = each.text(name) or ""
    return found


def seconds(part: Part, key: str) -> float | None:
    text = part.text(key)
    if text is None:
        return None
    if _DURATION.fullmatch(text):
        return sum(float(count) * _SECONDS[unit] for count, unit in _PART.findall(text))
    if re.fullmatch(r"\d+", text):
        return int(text) / 1e9 if int(text) >= 10**6 else float(text)  # nanoseconds in JSON
    raise part.wrong(key, f"{text[:40]!r} is not a duration; write `30s`, `1h`")


def duration(part: Part, key: str) -> str | None:
    found = seconds(part, key)
    return None if found is None else str(Seconds(found))


def drop_all(part: Part, reasons: dict[str, str]) -> None:
    for key in part:
        if key in reasons:
            part.drop(key, reasons[key])


def merged_text(values: list[Any]) -> str:
    return ",".join(str(each) for each in values)
