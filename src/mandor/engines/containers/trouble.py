"""What keeps a container from starting now and may be gone later: pure."""

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
    """To be tried again; everything else is wrong as it was asked for."""
    said = message.lower()
    return any(mark in said for mark in _PASSING)


def taken_port(message: str, ports: Collection[int]) -> int | None:
    """Which of these ports of the node somebody else has, by what the engine says; None: that is not what it says."""
    if not ports or not any(mark in message.lower() for mark in _TAKEN):
        return None
    told = {int(number) for number in re.findall(r"\d+", message)}
    return next((port for port in ports if port in told), next(iter(ports)))
