"""Which of several equals: by a hash of workload, node and a seed, so that the same input gives the same answer.

A profile may have the first by name instead (`ties: first`), where everybody is to fill one node before the next.

The nodes have a drawn order, in which each has its own place; each workload begins somewhere else in it and has strides
of its own. So no two nodes have the same lot, and nothing depends on the order in which the nodes became known.
"""

import hashlib
from array import array
from typing import Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.identity import Identity

TieBreaks = NDArray[np.uint32]
"""One for each node: the highest wins."""
Ties = Literal["spread", "first"]
"""Each workload has its own favourites among equals, or the first by name is everybody's."""
_SPREAD = 0x9E3779B1


def bits_of(count: int) -> int:
    """So many hold the lots of so many nodes."""
    return max(1, (count - 1).bit_length())


class TieBreakOrder:
    """Nodes in the order of a hash of their names, and in that of their names; worked out when it is asked for."""

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
        """The last takes its place."""
        name, drawn = self._names.pop(), self._hashes.pop()
        if slot < len(self._names):
            self._names[slot], self._hashes[slot] = name, drawn
        self._drawn = self._listed = None

    def drawn(self) -> TieBreaks:
        if self._drawn is None:
            self._drawn = _places(np.array(self._hashes).argsort(kind="stable"))
        return self._drawn

    def listed(self) -> TieBreaks:
        """Counted from the last: the first is the highest."""
        if self._listed is None:
            slots = range(len(self._names))
            self._listed = _places(np.array(sorted(slots, key=self._names.__getitem__, reverse=True), dtype=np.intp))
        return self._listed


def _places(order: NDArray[np.intp]) -> TieBreaks:
    """Of each in that order."""
    places = np.empty(len(order), dtype=np.uint32)
    places[order] = np.arange(len(order), dtype=np.uint32)
    places.flags.writeable = False
    return places


def tie_breaks(identity: Identity, order: TieBreaks, count: int) -> TieBreaks:
    """Of some nodes among so many. An odd stride goes through a power of two without meeting a number twice."""
    hashed = crc32(f"{identity.namespace}/{identity.workload}/{identity.group}".encode()) * _SPREAD & 0xFFFFFFFF
    found: TieBreaks = order * np.uint32(hashed | 1)
    found += np.uint32(hashed >> 16)
    found &= np.uint32((1 << bits_of(count)) - 1)
    return found
