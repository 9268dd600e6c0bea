"""Which of several equals: by a hash of workload, node and a seed, so that the same input gives the same answer.

A profile may have the first by name instead (`ties: first`), where everybody is to fill one node before the next.

The nodes have a drawn order, in which each has its own place; each workload begins somewhere else in it and has strides
of its own. So no two nodes have the same lot, and nothing depends on the order in which the nodes became known.
"""

from collections.abc import Sequence
from typing import Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.identity import Identity

Lots = NDArray[np.uint32]
"""One for each node: the highest wins."""
Ties = Literal["spread", "first"]
"""Each workload has its own favourites among equals, or the first by name is everybody's."""
_SPREAD = 0x9E3779B1


def bits_of(count: int) -> int:
    """So many hold the lots of so many nodes."""
    return max(1, (count - 1).bit_length())


def drawn(luck: NDArray[np.uint64]) -> Lots:
    """The place of each node in the order of their hashes."""
    order = np.empty(len(luck), dtype=np.uint32)
    order[luck.argsort(kind="stable")] = np.arange(len(luck), dtype=np.uint32)
    return order


def listed(names: Sequence[str]) -> Lots:
    """The place of each node in the order of their names, counted from the last."""
    order = np.empty(len(names), dtype=np.uint32)
    order[sorted(range(len(names)), key=names.__getitem__, reverse=True)] = np.arange(len(names), dtype=np.uint32)
    return order


def lots(who: Identity, order: Lots, count: int) -> Lots:
    """Of some nodes among so many. An odd stride goes through a power of two without meeting a number twice."""
    hashed = crc32(f"{who.namespace}/{who.workload}/{who.group}".encode()) * _SPREAD & 0xFFFFFFFF
    found: Lots = order * np.uint32(hashed | 1)
    found += np.uint32(hashed >> 16)
    found &= np.uint32((1 << bits_of(count)) - 1)
    return found
