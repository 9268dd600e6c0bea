"""User id ranges of namespaces. Ranges are assigned in turn, so that a freed one is reused last."""

from collections.abc import Collection

from mandor.errors import Unavailable
from mandor.model.record import FIRST_NAMESPACE_USER, USERS_PER_NAMESPACE

RANGES = (2**31 - FIRST_NAMESPACE_USER) // USERS_PER_NAMESPACE
"""Maximum number of namespaces with a range of user ids."""
MAPPED_USERS = 65_536
"""Usual number of user ids in a user namespace, for a rootless engine or an Incus container."""
_FIRST_MAPPED = 1_000


def free_range(taken: Collection[int], start: int) -> tuple[int, int]:
    """Return the first user id of a free range, and the user id where the next search starts."""
    first = max(0, start - FIRST_NAMESPACE_USER) // USERS_PER_NAMESPACE
    for step in range(RANGES):
        number = (first + step) % RANGES
        user = FIRST_NAMESPACE_USER + number * USERS_PER_NAMESPACE
        if user not in taken:
            return user, FIRST_NAMESPACE_USER + (number + 1) % RANGES * USERS_PER_NAMESPACE
    raise Unavailable(f"all {RANGES} ranges of user ids are in use", hint="delete unused namespaces")


def mapped_user(user: int) -> int:
    """Map a namespace's user id into a user namespace of 65536 ids; other ids stay unchanged."""
    if user < FIRST_NAMESPACE_USER:
        return user
    number = (user - FIRST_NAMESPACE_USER) // USERS_PER_NAMESPACE
    return _FIRST_MAPPED + number % (MAPPED_USERS - 2 * _FIRST_MAPPED)
