"""Converts Compose's amounts: `50m` is binary there, `1m30s` a duration, `"0.5"` cores."""

import re

from mandor.importers.part import Part
from mandor.lib.quantity import Cpu, Seconds, Size

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([bkmgtp]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {unit: 1024**power for power, unit in enumerate("kmgtp", start=1)} | {"": 1, "b": 1}
_PLAIN = re.compile(r"\d+(?:\.\d+)?")
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:us|µs|ns|ms|s|m|h|d|w))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(us|µs|ns|ms|s|m|h|d|w)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def size_of(text: str) -> str:
    """Return the size in bytes: Docker's units are powers of 1024, however they are written."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a size; write `64m`, `2gb`")
    return str(Size(int(float(match[1]) * _UNITS[match[2].lower()])))


def seconds_of(text: str) -> float:
    bare = text.strip()
    if _PLAIN.fullmatch(bare):
        return float(bare)
    if not _DURATION.fullmatch(bare):
        raise ValueError(f"{text[:40]!r} is not a duration; write `30s`, `1m30s`")
    return sum(float(count) * _SECONDS[unit] for count, unit in _DURATION_PART.findall(bare))


def take_size(part: Part, key: str) -> str | None:
    text = part.text(key)
    try:
        return None if text is None else size_of(text)
    except ValueError as error:
        raise part.wrong(key, str(error)) from None


def take_seconds(part: Part, key: str) -> str | None:
    text = part.text(key)
    try:
        return None if text is None else str(Seconds.parse(str(Seconds(seconds_of(text)))))
    except ValueError as error:
        raise part.wrong(key, str(error)) from None


def take_cpu(part: Part, key: str) -> str | None:
    cores = part.number(key)
    if cores is not None and not 0 <= cores <= 100_000:
        raise part.wrong(key, f"{cores} is no number of cores")
    return None if not cores else str(Cpu(max(1, round(cores * 1000))))
