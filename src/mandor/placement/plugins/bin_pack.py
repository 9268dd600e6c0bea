"""BinPack: fills nodes to a wanted share before it begins another one, and does not overfill them gladly."""

import numpy as np
from msgspec import Struct

from mandor.placement.framework.allocation import Weighed, requested
from mandor.placement.framework.ask import MEMORY, Ask
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import SCORE_MOST, ScorePlugin
from mandor.placement.framework.snapshot import Snapshot


class BinPackArgs(Struct, frozen=True, forbid_unknown_fields=True):
    low: int = 65
    high: int = 70
    """Percent of what can be allocated: between these a node is as full as it should be."""
    resource: str = MEMORY

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high <= 100:
            raise ValueError(f"low {self.low} and high {self.high} are percentages, with 0 < low <= high <= 100")


class BinPack(ScorePlugin):
    """A peak, not a cap: 100 for a node that the instance brings between `low` and `high`, less on both sides, and
    0 for one that would be empty or full."""

    name = "BinPack"
    Args = BinPackArgs

    def __init__(self, args: BinPackArgs | None = None) -> None:
        self._args = args or BinPackArgs()

    def score(self, state: CycleState, ask: Ask, nodes: Snapshot, feasible: Mask) -> Scores:
        low, high = self._args.low, self._args.high
        amounts = requested(ask, nodes, (Weighed(self._args.resource),))
        if not amounts:
            return np.zeros(len(nodes), dtype=np.int64)
        taken, capacity, _ = amounts[0]
        room = np.maximum(capacity, 1)
        rising = SCORE_MOST * 100 * taken // (low * room)
        falling = SCORE_MOST * (100 * room - 100 * taken) // (max(100 - high, 1) * room)
        scores = np.minimum(np.minimum(rising, falling), SCORE_MOST)
        return np.where(capacity > 0, np.maximum(scores, 0), 0)
