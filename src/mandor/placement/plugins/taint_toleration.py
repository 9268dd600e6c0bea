"""TaintToleration: nodes with taints take only instances that tolerate them; pressure is a taint, too."""

from collections.abc import Hashable, Sequence

import numpy as np

from mandor.model.node import Node, Taint, pressure_of
from mandor.model.placement import Toleration
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalFilter, IncrementalScore, Reach
from mandor.placement.framework.node_rule import tolerated_nodes, untolerated
from mandor.placement.framework.points import NODE_EVENTS, SKIP, PreScorePlugin, Skip, scaled, tally
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot


class TaintToleration(IncrementalFilter, PreScorePlugin, IncrementalScore):
    """Scores higher with fewer `PreferNoSchedule` taints that are not tolerated."""

    name = "TaintToleration"
    retry_on = NODE_EVENTS
    by_class = True

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return request.shape.tolerate

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        return tolerated_nodes(request.shape.tolerate, nodes)

    def rules_out(self, request: PlacementRequest, node: Node) -> bool:
        return bool(untolerated(node.taints, request.shape.tolerate))

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        tolerate = request.shape.tolerate
        return tally(_reason(untolerated(nodes.taints[int(slot)], tolerate)) for slot in refused.nonzero()[0])

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        """Skip the score if no node has such taints: all nodes are equal."""
        return None if np.count_nonzero(self.score(state, request, nodes, feasible)) else SKIP

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        tolerate = request.shape.tolerate
        return nodes.taints.scores((self.name, tolerate), lambda taints: len(_soft(taints, tolerate)))

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        return scaled(scores, reverse=True)


def _soft(taints: Sequence[Taint], tolerate: Sequence[Toleration]) -> list[Taint]:
    return [each for each in taints if each.effect == "PreferNoSchedule" and not _tolerated(each, tolerate)]


def _reason(hard: Sequence[Taint]) -> str:
    short = pressure_of(hard)
    return f"short of {', '.join(short)}: with {hard[-1]}" if short else f"with {hard[0]}"


def _tolerated(taint: Taint, tolerate: Sequence[Toleration]) -> bool:
    return any(each.covers(taint) for each in tolerate)
