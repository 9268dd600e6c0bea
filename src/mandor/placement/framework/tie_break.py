"""Tie breaks: the choice between nodes with equal scores, by a hash of workload, node and a seed. Equal input gives an
equal choice.

A profile with `ties: first` prefers the first node by name instead, to fill one node before the next.

The nodes have a seeded random order; each workload starts at another position with another step. So no two nodes have
the same value, and the result does not depend on the order in which nodes were added.
"""

import hashlib
from array import array
from typing import Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.identity import Identity

TieBreaks = NDArray[np.uint32]
"""One value for each node; the highest is chosen."""
Ties = Literal["spread", "first"]
"""`spread`: each workload prefers other nodes among equals; `first`: all prefer the first by name."""
_SPREAD = 0x9E3779B1


def bits_of(count: int) -> int:
    """Return the number of bits that hold the tie breaks of `count` nodes."""
    return max(1, (count - 1).bit_length())


class TieBreakOrder:
    """Positions of the nodes in the order of a seeded hash and in the order of names; computed on demand."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._names: list[str] = []
        self._hashes = array("Q")
        self._drawn: TieBreaks | None = None
        self._listed: TieBreaks | None = None

    def append(self, name: str) -> None:
        digest = hashlib.blake2b(f"{self._seed}/{name}".encode(), digest_size=8).digest()
        self._names.append(name)
        self._hashes.append(int.from_bytes(digest, "big"))
        self._drawn = self._listed = None

    def remove(self, slot: int) -> None:
        """Remove a slot; the last slot takes its number."""
        name, drawn = self._names.pop(), self._hashes.pop()
        if slot < len(self._names):
            self._names[slot], self._hashes[slot] = name, drawn
        self._drawn = self._listed = None

    def drawn(self) -> TieBreaks:
        """Return the positions in the order of the hash."""
        if self._drawn is None:
            self._drawn = _places(np.array(self._hashes).argsort(kind="stable"))
        return self._drawn

    def listed(self) -> TieBreaks:
        """Return the positions by name; the first name has the highest."""
        if self._listed is None:
            slots = range(len(self._names))
            self._listed = _places(np.array(sorted(slots, key=self._names.__getitem__, reverse=True), dtype=np.intp))
        return self._listed


def _places(order: NDArray[np.intp]) -> TieBreaks:
    """Return the position of each slot in an order of slots."""
    places = np.empty(len(order), dtype=np.uint32)
    places[order] = np.arange(len(order), dtype=np.uint32)
    places.flags.writeable = False
    return places


def tie_breaks(identity: Identity, order: TieBreaks, count: int) -> TieBreaks:
    """Return the tie breaks of an identity for some of `count` nodes.

    An odd factor permutes the numbers below a power of two, so no two nodes get the same value.
    """
    hashed = crc32(f"{identity.namespace}/{identity.workload}/{identity.group}".encode()) * _SPREAD & 0xFFFFFFFF
    found: TieBreaks = order * np.uint32(hashed | 1)
    found += np.uint32(hashed >> 16)
    found &= np.uint32((1 << bits_of(count)) - 1)
    return found
