"""RoundRobin: uses the nodes in turn."""

import numpy as np

from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import SCORE_MOST, ScorePlugin
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot


class RoundRobin(ScorePlugin):
    """Scores 100 for the node with the oldest placement, 0 for all others; nodes without placements come first.

    The order starts again after a restart of the scheduler.
    """

    name = "RoundRobin"

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        turns = nodes.turns[feasible]
        first = int(turns.min()) if len(turns) else 0
        return np.where(nodes.turns == first, SCORE_MOST, 0)
