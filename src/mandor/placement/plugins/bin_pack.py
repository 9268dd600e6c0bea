"""BinPack: fills nodes to a target share before it uses empty ones, and avoids filling them further."""

import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr

from mandor.model.resources import resource_name
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
    """Target range in percent of the allocatable amounts."""
    resource: str = MEMORY

    def __post_init__(self) -> None:
        force_setattr(self, "resource", resource_name(self.resource, "resource"))
        if not 0 < self.low <= self.high <= 100:
            raise ValueError(f"low {self.low} and high {self.high} are percentages, with 0 < low <= high <= 100")


class BinPack(ScorePlugin):
    """Scores 100 for a node that ends up between `low` and `high`, 50 to 100 for one that stays below (fuller is
    better), and less than 50 for one that ends up above (fuller is worse)."""

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
