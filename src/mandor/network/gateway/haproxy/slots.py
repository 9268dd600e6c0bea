"""Server slots: places for endpoints in a backend of HAProxy, which change without a new configuration. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from mandor.network.base import Endpoint

SLOTS_LEAST = 4
"""Smallest number of slots of a backend."""


class Slot(NamedTuple):
    """The endpoint in a slot."""

    address: str
    port: int
    weight: int


Slots = tuple[Slot | None, ...]
"""Slots of one backend; None: free."""


def slots_for(count: int) -> int:
    """Return the number of slots of a backend with `count` endpoints: room for twice as many, as in a roll-out."""
    return max(SLOTS_LEAST, 1 << (2 * count - 1).bit_length()) if count else SLOTS_LEAST


def assign(current: Sequence[Slot | None], endpoints: Sequence[Endpoint]) -> Slots:
    """Return the slots for these endpoints: endpoints that stay keep their slot, new ones get a free slot.

    Slots that become free now are used last, because connections to their former endpoint may still exist. The number
    of slots grows if it is too small, and never shrinks.
    """
    wanted = {(each.address, each.port): each.weight for each in endpoints}
    found: list[Slot | None] = []
    for slot in current:
        weight = wanted.pop((slot.address, slot.port), None) if slot is not None else None
        found.append(Slot(slot.address, slot.port, weight) if slot is not None and weight is not None else None)
    free = sorted((place for place, slot in enumerate(found) if slot is None), key=lambda at: current[at] is not None)
    if not current or len(wanted) > len(free):
        size = max(slots_for(len(endpoints)), len(found))
        free += range(len(found), size)
        found += [None] * (size - len(found))
    for (address, port), weight in wanted.items():
        found[free.pop(0)] = Slot(address, port, weight)
    return tuple(found)
