"""NodeAffinity: evaluates the `where` rules on nodes."""

from collections.abc import Hashable

import numpy as np

from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalFilter, IncrementalScore, Reach
from mandor.placement.framework.node_rule import matching, matching_all
from mandor.placement.framework.points import NODE_EVENTS, SKIP, PreFilterPlugin, PreScorePlugin, Skip, scaled
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot


class NodeAffinity(PreFilterPlugin, IncrementalFilter, PreScorePlugin, IncrementalScore):
    """A `should` rule must hold until it is relaxed; then it is the strongest preference."""

    name = "NodeAffinity"
    retry_on = NODE_EVENTS
    by_class = True

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return request.rules.where, request.rules.preferred_where

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        return None if request.rules.where else SKIP

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        return matching_all(request.rules.where, nodes)

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        broken = [where for where in request.rules.where if not matching(where, nodes)[refused].all()]
        return "; ".join("not " + " or ".join(f"`{text}`" for text in where.texts) for where in broken)

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        return None if request.rules.preferred_where else SKIP

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        sums = np.zeros(len(nodes), dtype=np.int64)
        for where, weight in request.rules.preferred_where:
            sums += weight * matching(where, nodes)
        return sums

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        return scaled(scores)
