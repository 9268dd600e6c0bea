"""Fragmentation: prefers nodes where the placement leaves the most room for frequent requests."""

from heapq import nlargest

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import SKIP, PreScorePlugin, ScorePlugin, Skip, scaled
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot, Wanted

_SCALE = 1000
_MANY = 2**31


class FragmentationArgs(Struct, frozen=True, forbid_unknown_fields=True):
    shapes: int = 4
    """Number of the most frequent requests that are considered."""

    def __post_init__(self) -> None:
        if not 1 <= self.shapes <= 32:
            raise ValueError(f"shapes is {self.shapes}; it is 1..32")


class Fragmentation(PreScorePlugin, ScorePlugin):
    """Rates a node by the number of frequent requests that would no longer fit there, weighted with their size and
    frequency. So instances without GPUs leave the CPUs of GPU nodes free, and GPUs are taken where others are in
    use."""

    name = "Fragmentation"
    Args = FragmentationArgs

    def __init__(self, args: FragmentationArgs | None = None) -> None:
        self._count = (args or FragmentationArgs()).shapes

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        return None if self._frequent(nodes) else SKIP

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        taken = dict(request.shape.wanted)
        loss = np.zeros(len(nodes), dtype=np.int64)
        for wanted, count in self._frequent(nodes):
            before, after = _places(wanted, {}, nodes), _places(wanted, taken, nodes)
            loss += (before - after) * _size(wanted, nodes) * count
        return loss

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        return scaled(scores, reverse=True)

    def _frequent(self, nodes: Snapshot) -> list[tuple[Wanted, int]]:
        asked = ((wanted, count) for wanted, count in nodes.wanted.items() if wanted)
        return nlargest(self._count, asked, key=lambda item: (item[1], item[0]))


def _places(wanted: Wanted, taken: dict[str, int], nodes: Snapshot) -> NDArray[np.int64]:
    """Return how many times a request fits on each node after amounts are taken."""
    places = np.full(len(nodes), _MANY, dtype=np.int64)
    for resource, amount in wanted:
        row = nodes.rows.get(resource)
        if row is None:
            return np.zeros(len(nodes), dtype=np.int64)
        free = nodes.free[row] - taken.get(resource, 0)
        np.minimum(places, np.maximum(free, 0) // amount, out=places)
    return places


def _size(wanted: Wanted, nodes: Snapshot) -> int:
    """Return the largest share of the request in the largest node, in thousandths; at least 1."""
    shares = [0]
    for resource, amount in wanted:
        row = nodes.rows.get(resource)
        most = int(nodes.allocatable[row].max()) if row is not None and len(nodes) else 0
        shares.append(min(_SCALE, _SCALE * amount // most) if most else 0)
    return max(1, *shares)
