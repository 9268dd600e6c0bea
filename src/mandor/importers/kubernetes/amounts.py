"""Kubernetes quantities (`100m`, `1.5Gi`, `129e6`) and the resources of containers."""

import re
from fractions import Fraction
from typing import Any

from mandor.importers.base import filled
from mandor.importers.part import Part
from mandor.lib.quantity import Cpu, Seconds, Size
from mandor.model.resources import DEVICES_MOST, device_amounts, device_name, page_bytes

_QUANTITY = re.compile(r"\+?(\d+(?:\.\d*)?|\.\d+)(?:([eE])([+-]?\d{1,2})|(n|u|m|k|[MGTPE]|[KMGTPE]i)?)", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {f"{letter}i": 1024 ** (power + 1) for power, letter in enumerate("KMGTPE")}
_TEXT_MOST = 64
SECONDS_MOST = 10 * 365 * 86_400

CPU, MEMORY, DISK = "cpu", "memory", "ephemeral-storage"
_NAMES = {CPU: "cpu", MEMORY: "memory", DISK: "disk"}


def amount(text: str) -> Fraction:
    """Return the number; raise `ValueError` if the text is not a quantity."""
    match = _QUANTITY.fullmatch(text.strip()) if len(text) <= _TEXT_MOST else None
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a quantity")
    number, power, unit = Fraction(match[1]), int(match[3] or 0), match[4] or ""
    return number * (_BINARY.get(unit) or Fraction(10) ** (power + _DECIMAL[unit]))


def cpu(text: str) -> str:
    """Return CPU cores as a manifest writes them, rounded up to a thousandth."""
    return str(Cpu(_up(amount(text) * 1000)))


def size(text: str) -> str:
    return str(Size(_up(amount(text))))


def _up(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


def seconds(part: Part, key: str) -> float | None:
    found = part.number(key)
    if found is not None and not -SECONDS_MOST <= found <= SECONDS_MOST:
        raise part.wrong(key, f"{found} is no number of seconds")
    return None if found is None else max(0.0, found)


def duration(part: Part, key: str) -> str | None:
    """Return seconds as a manifest writes them; None for 0."""
    found = seconds(part, key)
    return str(Seconds(found)) if found else None


def share(part: Part, key: str) -> int | str | None:
    """Return `3` or `25%`."""
    text = part.text(key)
    if text is None:
        return None
    bare = text.removesuffix("%")
    if not bare.isdecimal() or len(bare) > 6 or (text.endswith("%") and int(bare) > 100):
        raise part.wrong(key, f"{text[:20]!r} is neither a number nor a percentage")
    return text if text.endswith("%") else int(bare)


def amounts_of(part: Part, key: str) -> dict[str, str]:
    """Return the quantities by resource, each checked."""
    found = part.text_map(key)
    for name, text in found.items():
        try:
            amount(text)
        except ValueError as error:
            raise part.wrong(key, f"{name}: {error}") from None
    return found


def named(amounts: dict[str, str]) -> dict[str, str]:
    """Return CPU, memory and disk as a manifest writes them."""
    return {
        here: cpu(amounts[name]) if name == CPU else size(amounts[name])
        for name, here in _NAMES.items()
        if name in amounts
    }


def resources(part: Part) -> dict[str, Any]:
    """Return the requests and limits of a container; as in Kubernetes, a limit alone is also the request."""
    limits = amounts_of(part, "limits")
    asked = {**limits, **amounts_of(part, "requests")}
    bounds = named(limits)
    if bounds.pop("disk", None) is not None:
        part.guess("limits", f"{DISK} is reserved, but not enforced as a limit")
    part.drop("claims", "devices that are claimed by name are not supported yet", "ask for them under `limits`")
    return filled(**named(asked), devices=_devices(part, asked), limits=bounds)


def _devices(part: Part, asked: dict[str, str]) -> list[dict[str, Any]]:
    found = []
    for name, text in asked.items():
        pages = page_bytes(name)
        count = int(amount(text)) if pages is None else _up(amount(text) / pages)
        if name in _NAMES or not count:
            continue
        key = "requests" if name in (part.peek("requests") or {}) else "limits"
        vendor, _, kind = device_name(name).rpartition("/")
        try:
            device_amounts(f"{vendor}/{kind}" if vendor else kind, count)
        except ValueError:
            part.guess(key, f"{name} is not a supported kind of device, and is dropped")
            continue
        if count > DEVICES_MOST:
            raise part.wrong(key, f"{count} of {name}; a task asks for at most {DEVICES_MOST} devices of a kind")
        found.append(filled(kind=kind, vendor=vendor or None, count=count))
    return found
