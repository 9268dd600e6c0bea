"""Which versions of Mandor work together: the same major number, and minor numbers that differ by one at most."""

from functools import lru_cache

SKEW_MOST = 1


@lru_cache(maxsize=256)
def skew(ours: str, theirs: str) -> int | None:
    """Return how many minor versions `theirs` is ahead of `ours`; None if they cannot be compared or the major
    versions differ.
    """
    mine, other = _number(ours), _number(theirs)
    if mine is None or other is None or mine[0] != other[0]:
        return None
    return other[1] - mine[1]


def compatible(ours: str, theirs: str) -> bool:
    apart = skew(ours, theirs)
    return apart is not None and abs(apart) <= SKEW_MOST


def newer(ours: str, theirs: str) -> bool:
    """Return whether `theirs` is newer than `ours`."""
    mine, other = _number(ours), _number(theirs)
    return mine is not None and other is not None and other > mine


def _number(version: str) -> tuple[int, int] | None:
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    return int(parts[0]), int(parts[1])
