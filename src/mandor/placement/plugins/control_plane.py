"""ControlPlane: nodes that run the control plane take no virtual machines."""

from collections.abc import Hashable

import numpy as np
from msgspec import Struct

from mandor.model.node import CONTROL_PLANE
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalFilter, IncrementalScore, Reach
from mandor.placement.framework.points import NODE_EVENTS, SCORE_MOST, SKIP, PreFilterPlugin, PreScorePlugin, Skip
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot


class ControlPlaneArgs(Struct, frozen=True, forbid_unknown_fields=True):
    label: str = CONTROL_PLANE
    """Label of such nodes; any value but `false` counts."""
    colocated: bool = False
    """Whether they are used when no other node has room, for small clusters."""


class ControlPlane(PreFilterPlugin, IncrementalFilter, PreScorePlugin, IncrementalScore):
    """Concerns virtual machines only; use taints for other instances."""

    name = "ControlPlane"
    Args = ControlPlaneArgs
    retry_on = NODE_EVENTS
    by_class = True

    def __init__(self, args: ControlPlaneArgs | None = None) -> None:
        self._args = args or ControlPlaneArgs()

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return request.shape.machine

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        return SKIP if self._args.colocated or not request.shape.machine else None

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        return self._others(nodes)

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        return "carries the control plane"

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        return None if self._args.colocated and request.shape.machine else SKIP

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        scores: Scores = np.where(self._others(nodes), SCORE_MOST, 0)
        return scores

    def _others(self, nodes: Snapshot) -> Mask:
        return nodes.fact(self._args.label).where(self.name, lambda value: value[0] in {None, "false"})
