"""BinPack: fills nodes to a wanted share before it begins another one, and does not overfill them gladly."""

import numpy as np
from msgspec import Struct

from mandor.placement.framework.allocation import Weighed, requested
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import SCORE_MOST, ScorePlugin
from mandor.placement.framework.request import MEMORY, PlacementRequest
from mandor.placement.framework.snapshot import Snapshot

_HALF = SCORE_MOST // 2


class BinPackArgs(Struct, frozen=True, forbid_unknown_fields=True):
    low: int = 65
    high: int = 70
    """Percent of what can be allocated: between these a node is as full as it should be."""
    resource: str = MEMORY

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high <= 100:
            raise ValueError(f"low {self.low} and high {self.high} are percentages, with 0 < low <= high <= 100")


class BinPack(ScorePlugin):
    """A peak, not a cap: 100 for a node that the instance brings between `low` and `high`; from 50 up to that for one
    that stays below, the fuller the better; under 50 for one that it brings above, the fuller the worse."""

    name = "BinPack"
    Args = BinPackArgs

    def __init__(self, args: BinPackArgs | None = None) -> None:
        self._args = args or BinPackArgs()

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        low, high = self._args.low, self._args.high
        amounts = requested(request, nodes, (Weighed(self._args.resource),))
        if not amounts:
            return np.zeros(len(nodes), dtype=np.int64)
        taken, capacity, _ = amounts[0]
        room = np.maximum(capacity, 1)
        below = _HALF + np.minimum(_HALF, _HALF * 100 * taken // (low * room))
        above = (_HALF - 1) * 100 * np.maximum(room - taken, 0) // (max(100 - high, 1) * room)
        scores = np.where(100 * taken > high * room, above, below)
        return np.where(capacity > 0, scores, 0)
