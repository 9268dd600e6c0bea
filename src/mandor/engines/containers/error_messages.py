"""Classifies error messages of engines: those that may pass, and ports that are in use. Pure."""

import re
from collections.abc import Collection

_TAKEN = ("port is already allocated", "address already in use")
_PASSING = (
    *_TAKEN,
    "no space left on device",
    "out of disk space",
    "disk quota exceeded",
    "too many open files",
    "resource temporarily unavailable",
    "cannot allocate memory",
    "deadline exceeded",
    "timeout",
    "timed out",
    "connection refused",
    "shutting down",
    "is shutdown",
    "transport is closing",
    "ttrpc: closed",
    "device or resource busy",
    "marked for removal",
    "database is locked",
)


def passing(message: str) -> bool:
    """Return whether the request may succeed later; other errors are caused by the request itself."""
    said = message.lower()
    return any(mark in said for mark in _PASSING)


def taken_port(message: str, ports: Collection[int]) -> int | None:
    """Return the port that is in use according to the message; None: the message is about something else."""
    if not ports or not any(mark in message.lower() for mark in _TAKEN):
        return None
    told = {int(number) for number in re.findall(r"\d+", message)}
    return next((port for port in ports if port in told), next(iter(ports)))
