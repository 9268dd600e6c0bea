"""PodTopologySpread: evaluates `spread` rules, which fill zones, racks or nodes evenly."""

from collections.abc import Hashable, Sequence
from math import log
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mandor.model.kubernetes_names import fact
from mandor.model.placement import Spread
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.identity import NO_IDENTITY, selector_of
from mandor.placement.framework.incremental import IncrementalFilter, IncrementalScore, Reach
from mandor.placement.framework.node_rule import matching_all, tolerated_nodes
from mandor.placement.framework.points import (
    CAPACITY_EVENTS,
    SCORE_MOST,
    SKIP,
    PreFilterPlugin,
    PreScorePlugin,
    Skip,
    whole_part,
)
from mandor.placement.framework.request import PlacementRequest, SpreadOver
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.topology_counts import NODE, Domains

_NOT_COUNTED = -1
_FINER = 10
"""Factor of scores with targets, before rounding."""
_TOLERANCE = 1e-9
_LEAST_SHARE = 0.001
"""Share that a target of 0 counts as in scores."""
Floats = NDArray[np.float64]


class DefaultConstraint(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    topology_key: str
    max_skew: int = 1
    when_unsatisfiable: Literal["ScheduleAnyway"] = "ScheduleAnyway"
    """Only `ScheduleAnyway`; hard constraints belong in the manifest."""

    def __post_init__(self) -> None:
        if self.max_skew < 1:
            raise ValueError(f"maxSkew is {self.max_skew}; it is 1 or more")


class PodTopologySpreadArgs(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    default_constraints: tuple[DefaultConstraint, ...] = ()
    """Constraints for groups without `spread` rules."""
    defaulting_type: Literal["List", "System"] = "List"
    """`System`: Kubernetes' defaults, preferred spreading over nodes (skew 3) and zones (skew 5)."""

    def __post_init__(self) -> None:
        if self.default_constraints and self.defaulting_type == "System":
            raise ValueError("`defaultConstraints` belongs to the defaultingType List")


_SYSTEM = (Spread(over=NODE, max_skew=3, strength="prefer"), Spread(over="zone", max_skew=5, strength="prefer"))


class PodTopologySpread(PreFilterPlugin, IncrementalFilter, PreScorePlugin, IncrementalScore):
    """Counts the domains of nodes that match the `where` rules that must hold and have all facts of the rules."""

    name = "PodTopologySpread"
    Args = PodTopologySpreadArgs
    retry_on = CAPACITY_EVENTS
    by_class = True

    def __init__(self, args: PodTopologySpreadArgs | None = None) -> None:
        chosen = args or PodTopologySpreadArgs()
        self._system = chosen.defaulting_type == "System"
        self._defaults = _SYSTEM if self._system else tuple(map(_spread, chosen.default_constraints))

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.CLUSTER

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return bool(request.rules.spread), bool(self._wished(request)[0])

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        return None if request.rules.spread else SKIP

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        rules = request.rules.spread
        fits = np.ones(len(nodes), dtype=np.bool_)
        for each in rules:
            within = _within_share if each.rule.targets else _within_skew
            fits &= within(each, _eligible(request, each, rules, nodes), nodes)
        return fits

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        said = []
        for each in request.rules.spread:
            over = each.rule.over
            eligible = _eligible(request, each, request.rules.spread, nodes)
            if not nodes.topology.known(over)[refused].all():
                said.append(f"no `{over}`")
            elif each.rule.targets:
                if not _within_share(each, eligible, nodes)[refused].all():
                    said.append(f"more than {each.rule.max_skew} above the share of its {over}")
            elif not _within_skew(each, eligible, nodes)[refused].all():
                there = _domain_count(each, eligible, nodes)
                few = f" ({there} of {each.rule.min_domains} domains)" if there < each.rule.min_domains else ""
                said.append(f"more than {each.rule.max_skew} ahead of the emptiest {over}{few}")
        return "; ".join(said)

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        return None if self._wished(request)[0] else SKIP

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        rules, strict = self._wished(request)
        counted = feasible
        if strict:
            for each in rules:
                counted = counted & nodes.topology.known(each.rule.over)
        sums = np.zeros(len(nodes))
        for each in rules:
            domains = nodes.topology.domains(each.selector, each.rule.over)
            eligible = _eligible(request, each, rules if strict else (), nodes)
            count = domains.counts if domains.column is None else _counts(domains, eligible)[0]
            size = _size(domains, counted)
            there: Floats = domains.spread_out(count).astype(np.float64)
            if each.rule.targets:
                there = _weighed_counts(there, _shares(each, domains, counted, nodes), size)
            term = there * log(size + 2) + (each.rule.max_skew - 1)
            sums += term if strict else np.where(nodes.topology.known(each.rule.over), term, 0.0)
        if any(each.rule.targets for each in rules):
            sums *= _FINER  # shares differ by fractions of an instance
        sums += 0.5
        scores = np.floor(sums, out=sums).astype(np.int64)
        if strict and np.count_nonzero(counted) < len(counted):
            scores[~counted] = _NOT_COUNTED
        return scores

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        low, high = (int(scores.min()), int(scores.max())) if len(scores) else (_NOT_COUNTED, _NOT_COUNTED)
        if high == _NOT_COUNTED:
            return np.zeros_like(scores)
        if low != _NOT_COUNTED:
            return _evenness(scores, low, high)
        counted = scores != _NOT_COUNTED
        low = int(scores[counted].min())
        return np.where(counted, _evenness(np.maximum(scores, low), low, high), 0)

    def _wished(self, request: PlacementRequest) -> tuple[Sequence[SpreadOver], bool]:
        """Return the scored rules, and whether a node needs all their facts to be counted."""
        rules = request.rules
        if rules.spread or rules.preferred_spread or not self._defaults or request.identity is NO_IDENTITY:
            return rules.preferred_spread, True
        made = [SpreadOver(rule, selector_of(rule, request.identity), counts_itself=True) for rule in self._defaults]
        return made, not self._system


def _evenness(scores: Scores, low: int, high: int) -> Scores:
    """Scale the sums: fewer instances give a higher score."""
    if high == 0:
        return np.full_like(scores, SCORE_MOST)
    return whole_part(SCORE_MOST * (high + low) - SCORE_MOST * scores, high)


def _spread(constraint: DefaultConstraint) -> Spread:
    return Spread(over=fact(constraint.topology_key), max_skew=constraint.max_skew, strength="prefer")


def _eligible(request: PlacementRequest, rule: SpreadOver, rules: Sequence[SpreadOver], nodes: Snapshot) -> Mask | None:
    """Return the nodes that a rule counts: they have the facts of all `rules`, and match what the rule honors; None:
    all."""
    found: Mask | None = None
    if request.rules.where and "where" in rule.rule.honor:
        found = matching_all(request.rules.where, nodes)
    if "taints" in rule.rule.honor:
        tolerated = tolerated_nodes(request.shape.tolerate, nodes)
        found = tolerated if found is None else found & tolerated
    for each in rules:
        known = nodes.topology.known(each.rule.over)
        found = known if found is None else found & known
    return None if found is None or np.count_nonzero(found) == len(found) else found


def _counts(domains: Domains, eligible: Mask | None) -> tuple[Scores, Mask | None]:
    if eligible is None:
        return domains.counts, None
    return domains.among(eligible)


def _within_skew(each: SpreadOver, eligible: Mask | None, nodes: Snapshot) -> Mask:
    domains = nodes.topology.domains(each.selector, each.rule.over)
    counts, present = _counts(domains, eligible)
    if present is None:
        present = domains.present
    there = counts if present is None else counts[present]
    if not len(there):
        return np.zeros(len(nodes), dtype=np.bool_)
    least = int(there.min()) if _domain_count(each, eligible, nodes) >= each.rule.min_domains else 0
    most = each.rule.max_skew - each.counts_itself + least
    open_domains: Mask = counts <= most
    if present is not None:
        open_domains &= present
    return domains.spread_out(open_domains) & nodes.topology.known(each.rule.over)


def _within_share(each: SpreadOver, eligible: Mask | None, nodes: Snapshot) -> Mask:
    """Return the nodes of domains that would have at most `max_skew` instances above their target."""
    domains = nodes.topology.domains(each.selector, each.rule.over)
    counts, present = _counts(domains, eligible)
    known = nodes.topology.known(each.rule.over)
    counted = known if eligible is None else known & eligible
    shares = _shares(each, domains, counted, nodes)
    more = int(each.counts_itself)
    excess = domains.spread_out(counts) + more - shares * (int(counts.sum()) + more)
    there = known if present is None else known & domains.spread_out(present)
    within: Mask = there & (shares > 0) & (excess <= each.rule.max_skew + _TOLERANCE)
    return within


def _shares(each: SpreadOver, domains: Domains, counted: Mask, nodes: Snapshot) -> Floats:
    """Return the target of each node's domain, 0 to 1; domains without one get equal parts of the rest."""
    targets = each.rule.targets
    percents = nodes.fact(each.rule.over).scores(
        ("targets", tuple(sorted(targets.items()))), lambda value: targets.get(value[0] or "", -1)
    )
    others = _size(domains, counted & (percents < 0))
    rest = (100 - sum(targets.values())) / max(others, 1)
    shares: Floats = np.where(percents < 0, rest, percents) / 100
    return shares


def _weighed_counts(counts: Floats, shares: Floats, size: int) -> Floats:
    """Return the counts with one more instance, each relative to the target of its domain."""
    weighed: Floats = (counts + 1) / (np.maximum(shares, _LEAST_SHARE) * max(size, 1))
    return weighed


def _domain_count(each: SpreadOver, eligible: Mask | None, nodes: Snapshot) -> int:
    """Return the number of domains that a rule counts."""
    known = nodes.topology.known(each.rule.over)
    domains = nodes.topology.domains(each.selector, each.rule.over)
    return _size(domains, known if eligible is None else known & eligible)


def _size(domains: Domains, counted: Mask) -> int:
    """Return the number of domains of the counted nodes."""
    count = int(np.count_nonzero(counted))
    if domains.column is None:
        return count
    if count == len(counted):
        return int(np.count_nonzero(domains.column.present))
    return int(np.count_nonzero(np.bincount(domains.column.codes[counted], minlength=1)))
