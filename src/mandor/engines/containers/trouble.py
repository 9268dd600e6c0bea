"""What keeps a container from starting now and may be gone later: pure."""

_PASSING = (
    "no space left on device",
    "disk quota exceeded",
    "port is already allocated",
    "address already in use",
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
