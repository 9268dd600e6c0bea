"""ControlPlane: machines that carry the control plane take no virtual machines, so that it never digs its own grave."""

from collections.abc import Hashable

import numpy as np
from msgspec import Struct

from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalFilter, IncrementalScore, Reach
from mandor.placement.framework.points import NODE_EVENTS, SCORE_MOST, SKIP, PreFilterPlugin, PreScorePlugin, Skip
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot


class ControlPlaneArgs(Struct, frozen=True, forbid_unknown_fields=True):
    label: str = "control-plane"
    """The label of such machines; with any value but `false`."""
    colocated: bool = False
    """They do take some, when no other machine has room: for a cluster too small to spare them."""


class ControlPlane(PreFilterPlugin, IncrementalFilter, PreScorePlugin, IncrementalScore):
    """It speaks of virtual machines alone: what else may run there is said with taints."""

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
