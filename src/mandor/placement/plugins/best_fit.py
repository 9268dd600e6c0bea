"""BestFit: the fullest node that has room is best, by what of its CPU, its memory and its VM quota is taken already."""

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
"""Shares are compared in so many parts: whole percents would make equals of nodes that are not."""
_SHARE_MOST = 10.0
"""Whatever is taken of a node that has next to nothing: larger numbers would have no room."""
_ENDLESS = 2**62
"""The quota of a node that has none: no number of machines is a share of it."""


class BestFitArgs(Struct, frozen=True, forbid_unknown_fields=True):
    cpu: int = 1
    memory: int = 1
    machines: int = 1
    """How much the share that is taken of each counts; 0: not at all."""
    fact: str = FACT
    """The fact or label that says how many virtual machines a node may hold."""

    def __post_init__(self) -> None:
        weights = {"cpu": self.cpu, "memory": self.memory, "machines": self.machines}
        for name, weight in weights.items():
            if not 0 <= weight <= WEIGHT_MOST:
                raise ValueError(f"{name} is {weight}; a weight is 0..{WEIGHT_MOST}")
        if not any(weights.values()):
            raise ValueError("cpu, memory and machines are all 0: one of them has to count")


class BestFit(ScorePlugin):
    """As things stand, without what is asked for: so of several nodes that are empty none is better than another. The
    best gets 100, and nobody else does, however close he comes."""

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
