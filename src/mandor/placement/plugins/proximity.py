"""Proximity: places instances that communicate close to each other."""

import numpy as np
from msgspec import Struct

from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import SKIP, PreScorePlugin, ScorePlugin, Skip, scaled
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.topology_counts import NODE


class ProximityArgs(Struct, frozen=True, forbid_unknown_fields=True):
    over: tuple[str, ...] = (NODE, "zone")
    """Facts that define closeness, from the closest to the farthest."""

    def __post_init__(self) -> None:
        if not self.over:
            raise ValueError("`over` names one fact at least")


class Proximity(PreScorePlugin, ScorePlugin):
    """Instances communicate if a `near` rule of either side selects the other, of any strength. Closer instances count
    more, whatever the `over` of the rule."""

    name = "Proximity"
    Args = ProximityArgs

    def __init__(self, args: ProximityArgs | None = None) -> None:
        self._over = (args or ProximityArgs()).over

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        return None if _talks(request, nodes) else SKIP

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        """Sum up the instances in each domain; those on the same node also count for its zone."""
        topology = nodes.topology
        sums = np.zeros(len(nodes), dtype=np.int64)
        for over in self._over:
            for term in request.shape.affinity_terms(request.identity):
                if term.kind == "near":
                    sums += term.weight * topology.domains(term.selector, over).at_nodes
            for term in topology.terms_matching(request.identity):
                if term.kind == "near":
                    sums += term.weight * topology.owners(term, over).at_nodes
        return sums

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        return scaled(scores)


def _talks(request: PlacementRequest, nodes: Snapshot) -> bool:
    return any(term.kind == "near" for term in request.shape.affinity_terms(request.identity)) or any(
        term.kind == "near" for term in nodes.topology.terms_matching(request.identity)
    )
