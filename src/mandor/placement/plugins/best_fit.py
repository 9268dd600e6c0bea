"""BestFit: prefers the fullest node with room, by the allocated shares of CPU, memory and VM quota."""

import numpy as np
from msgspec import Struct

from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.machine_quotas import FACT, machine_quotas
from mandor.placement.framework.points import SCORE_MOST, ScorePlugin
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot

WEIGHT_MOST = 1000
_PARTS = 10**12
"""Resolution of shares; whole percents would make different nodes equal."""
_SHARE_MOST = 10.0
"""Largest share, for nodes with almost no capacity; larger numbers would overflow."""
_ENDLESS = 2**62
"""Quota of a node without a limit, large enough that its used share is 0."""


class BestFitArgs(Struct, frozen=True, forbid_unknown_fields=True):
    cpu: int = 1
    memory: int = 1
    machines: int = 1
    """Weights of the allocated shares; 0: not counted."""
    fact: str = FACT
    """Fact or label with the maximum number of virtual machines."""

    def __post_init__(self) -> None:
        weights = {"cpu": self.cpu, "memory": self.memory, "machines": self.machines}
        for name, weight in weights.items():
            if not 0 <= weight <= WEIGHT_MOST:
                raise ValueError(f"{name} is {weight}; a weight is 0..{WEIGHT_MOST}")
        if not any(weights.values()):
            raise ValueError("cpu, memory and machines are all 0: one of them has to count")


class BestFit(ScorePlugin):
    """Rates nodes by what is allocated without the request, so that all empty nodes are equal. Only the best node gets
    100."""

    name = "BestFit"
    Args = BestFitArgs

    def __init__(self, args: BestFitArgs | None = None) -> None:
        self._args = args or BestFitArgs()
        self._weights = np.array([self._args.cpu, self._args.memory], dtype=np.float64)

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        args = self._args
        machines = nodes.machines / np.maximum(machine_quotas(nodes, args.fact, _ENDLESS), 1)
        room = nodes.counted / np.maximum(nodes.allocatable[:2], 1)
        full = np.minimum(machines, _SHARE_MOST) * args.machines + self._weights @ np.minimum(room, _SHARE_MOST)
        return np.rint(full * _PARTS).astype(np.int64)

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        low, high = int(scores.min()), int(scores.max())
        if low == high:
            return np.full(len(scores), SCORE_MOST, dtype=np.int64)
        relative: Scores = (scores - low) * SCORE_MOST // (high - low)
        return relative
