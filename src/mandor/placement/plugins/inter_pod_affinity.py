"""InterPodAffinity: evaluates the `near` and `apart` rules of the request and of the placed instances."""

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.identity import AffinityTerm
from mandor.placement.framework.incremental import IncrementalFilter, IncrementalScore, Reach
from mandor.placement.framework.points import ALL_EVENTS, SCORE_MOST, SKIP, PreFilterPlugin, PreScorePlugin, Skip
from mandor.placement.framework.request import RELAXED_WEIGHT, PlacementRequest
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.topology_counts import Domains


class InterPodAffinityArgs(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    hard_pod_affinity_weight: int = 1
    """Weight of a `must` rule of a placed instance to be near the new one."""
    ignore_preferred_terms_of_existing_pods: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.hard_pod_affinity_weight <= 100:
            raise ValueError(f"hardPodAffinityWeight is {self.hard_pod_affinity_weight}; it is 0..100")


class InterPodAffinity(PreFilterPlugin, IncrementalFilter, PreScorePlugin, IncrementalScore):
    """An `apart` rule holds both ways: a later instance also keeps away from those that want to be apart from it."""

    name = "InterPodAffinity"
    Args = InterPodAffinityArgs
    retry_on = ALL_EVENTS
    by_class = True

    def __init__(self, args: InterPodAffinityArgs | None = None) -> None:
        self._args = args or InterPodAffinityArgs()

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.CLUSTER

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        rules = request.rules
        return None if rules.near or rules.apart or any(_against(request, nodes)) else SKIP

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        fits = np.ones(len(nodes), dtype=np.bool_)
        for term in request.rules.apart:
            fits &= _below_limit(term, nodes)
        for _, owners in _against(request, nodes):
            fits &= _nobody(owners)
        for term in request.rules.near:
            fits &= _company(term, request, nodes)
        return fits

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        said = [
            f"not near {term.selector}"
            for term in request.rules.near
            if not _company(term, request, nodes)[refused].all()
        ]
        said += [
            f"{term.limit} of {term.selector} in its {term.over}"
            if term.limit > 1
            else f"not apart from {term.selector}"
            for term in request.rules.apart
            if not _below_limit(term, nodes)[refused].all()
        ]
        if any(not _nobody(owners)[refused].all() for _, owners in _against(request, nodes)):
            said.append("others there want to be apart from it")
        return "; ".join(said)

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        return None if any(self._pulls(request, nodes)) else SKIP

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        sums = np.zeros(len(nodes), dtype=np.int64)
        for weight, domains in self._pulls(request, nodes):
            sums += weight * domains.at_nodes
        return sums

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        """Scale the sums: the lowest becomes 0, the highest 100."""
        low, high = (int(scores.min()), int(scores.max())) if len(scores) else (0, 0)
        if low == high:
            return np.zeros_like(scores)
        shares: Scores = (SCORE_MOST * ((scores - low) / (high - low))).astype(np.int64)
        return shares

    def _pulls(self, request: PlacementRequest, nodes: Snapshot) -> Iterator[tuple[int, Domains]]:
        """Yield weights and domain counts of all preferred terms; negative weights push away."""
        for term, weight in request.rules.preferred_terms:
            yield weight, nodes.topology.domains(term.selector, term.over)
        for term in nodes.topology.terms_matching(request.identity):
            weight = self._pull(term, request)
            if weight:
                yield weight, nodes.topology.owners(term)

    def _pull(self, term: AffinityTerm, request: PlacementRequest) -> int:
        """Return the weight of a rule of placed instances for the request."""
        if term.strength == "prefer":
            signed = term.weight if term.kind == "near" else -term.weight
            return 0 if self._args.ignore_preferred_terms_of_existing_pods else signed
        if term.kind == "near":
            return self._args.hard_pod_affinity_weight
        return -RELAXED_WEIGHT if term.strength == "should" and request.lenient and term.limit == 1 else 0


def _against(request: PlacementRequest, nodes: Snapshot) -> Iterator[tuple[AffinityTerm, Domains]]:
    """Yield the `apart` rules of placed instances that match the request, with their domains."""
    for term in nodes.topology.terms_matching(request.identity):
        binding = term.strength == "must" or (term.strength == "should" and not request.lenient)
        if term.kind == "apart" and binding and term.limit == 1:
            yield term, nodes.topology.owners(term)


def _nobody(domains: Domains) -> Mask:
    empty: Mask = domains.at_nodes == 0
    return empty


def _below_limit(term: AffinityTerm, nodes: Snapshot) -> Mask:
    below: Mask = nodes.topology.domains(term.selector, term.over).at_nodes < term.limit
    return below


def _company(term: AffinityTerm, request: PlacementRequest, nodes: Snapshot) -> Mask:
    """Return the nodes that satisfy a `near` rule; all nodes for the first instance of a group that selects itself."""
    domains = nodes.topology.domains(term.selector, term.over)
    there: Mask = domains.at_nodes > 0
    if term.selector.matches(request.identity) and not there.any():
        return nodes.topology.known(term.over)
    return there
