"""NodeResourcesFit: is there room, and where is most of it left?"""

import numpy as np

from mandor.lib.quantity import Cpu, Size
from mandor.placement.framework.ask import CPU, DISK, MEMORY, Ask
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import ANYTHING, SCORE_MOST, FilterPlugin, ScorePlugin
from mandor.placement.framework.snapshot import Snapshot


class NodeResourcesFit(FilterPlugin, ScorePlugin):
    """The score is Kubernetes' LeastAllocated over CPU and memory, in its whole numbers."""

    name = "NodeResourcesFit"
    retry_on = ANYTHING
    by_class = True

    def filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Mask:
        fits = np.ones(len(nodes), dtype=np.bool_)
        for resource, amount in ask.shape.wanted:
            row = nodes.rows.get(resource)
            if row is None:
                fits[:] = False
            else:
                fits &= nodes.free[row] >= amount
        return fits

    def why(self, ask: Ask, nodes: Snapshot, refused: Mask) -> str:
        return ", ".join(
            f"short of {_shown(resource, short)} {resource}"
            for resource, amount in ask.shape.wanted
            if (short := _shortage(resource, amount, nodes, refused)) > 0
        )

    def score(self, state: CycleState, ask: Ask, nodes: Snapshot, feasible: Mask) -> Scores:
        capacity = nodes.allocatable[:2]  # CPU and memory
        left = capacity - nodes.counted
        left -= np.array(ask.shape.counted)[:, np.newaxis]
        np.maximum(left, 0, out=left)
        left *= SCORE_MOST
        left //= np.maximum(capacity, 1)
        # A node that has none of a resource is judged by the other.
        counted = (capacity[0] > 0).astype(np.int64) + (capacity[1] > 0)
        scores: Scores = (left[0] + left[1]) // np.maximum(counted, 1)
        return scores


def _shortage(resource: str, amount: int, nodes: Snapshot, refused: Mask) -> int:
    """How little more on the best of the refused nodes would do; 0 where one of them has enough of this."""
    row = nodes.rows.get(resource)
    return amount if row is None else amount - int(nodes.free[row][refused].max())


def _shown(resource: str, amount: int) -> str:
    if resource == CPU:
        return str(Cpu(amount))
    return str(Size(amount)) if resource in {MEMORY, DISK} else str(amount)
