"""User ids of namespaces: ranges of `USERS_PER_NAMESPACE`, chosen in turn so that a freed one is used again last."""

from collections.abc import Collection

from mandor.errors import Unavailable
from mandor.model.record import FIRST_NAMESPACE_USER, USERS_PER_NAMESPACE

RANGES = (2**31 - FIRST_NAMESPACE_USER) // USERS_PER_NAMESPACE
"""How many namespaces can have user ids at the same time."""
MAPPED_USERS = 65_536
"""How many user ids a user namespace has as a rule: a rootless engine, or a container of Incus."""
_FIRST_MAPPED = 1_000


def free_range(taken: Collection[int], start: int) -> tuple[int, int]:
    """(first user id of a range that no namespace has, where the next search starts)."""
    first = max(0, start - FIRST_NAMESPACE_USER) // USERS_PER_NAMESPACE
    for step in range(RANGES):
        number = (first + step) % RANGES
        user = FIRST_NAMESPACE_USER + number * USERS_PER_NAMESPACE
        if user not in taken:
            return user, FIRST_NAMESPACE_USER + (number + 1) % RANGES * USERS_PER_NAMESPACE
    raise Unavailable(f"all {RANGES} ranges of user ids are taken", hint="delete namespaces that are not used")


def mapped_user(user: int) -> int:
    """A user id of a namespace as one that a user namespace of 65536 ids has; any other id stays as it is."""
    if user < FIRST_NAMESPACE_USER:
        return user
    number = (user - FIRST_NAMESPACE_USER) // USERS_PER_NAMESPACE
    return _FIRST_MAPPED + number % (MAPPED_USERS - 2 * _FIRST_MAPPED)
