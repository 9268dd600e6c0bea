"""NodeAffinity: evaluates the `where` rules on nodes, and the rules that a profile adds to all of its instances."""

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from mandor.model.kubernetes_names import fact
from mandor.model.meta import InvalidField
from mandor.model.rule import Rule, parse_rule
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalFilter, IncrementalScore, Reach
from mandor.placement.framework.node_rule import matching, matching_all, passes
from mandor.placement.framework.points import NODE_EVENTS, SKIP, PreFilterPlugin, PreScorePlugin, Skip, scaled
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot

_OPS = {"In": "in", "NotIn": "not in", "Exists": "exists", "DoesNotExist": "not exists", "Gt": ">", "Lt": "<"}


class Expression(Struct, frozen=True, forbid_unknown_fields=True):
    """One condition of a term, as in Kubernetes."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.values)
        if not self.key:
            raise InvalidField("`key` is empty", "key")
        if self.operator in {"In", "NotIn"} and not count:
            raise InvalidField(f"{self.operator} needs at least one value", "values")
        if self.operator in {"Exists", "DoesNotExist"} and count:
            raise InvalidField(f"{self.operator} takes no values", "values")
        if self.operator in {"Gt", "Lt"}:
            if count != 1:
                raise InvalidField(f"{self.operator} takes one value", "values")
            parse_rule(f"fact integer > {self.values[0]}")

    @property
    def rule(self) -> Rule:
        op = _OPS[self.operator]
        return Rule(fact(self.key), f"integer {op}" if self.operator in {"Gt", "Lt"} else op, self.values)


class Term(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Conditions that must all hold; a term without conditions matches no node."""

    match_expressions: tuple[Expression, ...] = ()
    match_fields: tuple[Expression, ...] = ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(each.rule for each in (*self.match_expressions, *self.match_fields))

    def __str__(self) -> str:
        return " and ".join(f"`{each}`" for each in self.rules)


class PreferredTerm(Struct, frozen=True, forbid_unknown_fields=True):
    preference: Term
    weight: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.weight <= 100:
            raise InvalidField(f"weight {self.weight} is not in 1..100", "weight")


class NodeSelector(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    node_selector_terms: tuple[Term, ...]
    """Terms of which one must match."""

    def __post_init__(self) -> None:
        if not self.node_selector_terms:
            raise InvalidField("at least one term is needed", "nodeSelectorTerms")


class AddedAffinity(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredTerm, ...] = ()

    @property
    def required(self) -> tuple[Term, ...]:
        needed = self.required_during_scheduling_ignored_during_execution
        return () if needed is None else needed.node_selector_terms

    @property
    def preferred(self) -> tuple[PreferredTerm, ...]:
        return self.preferred_during_scheduling_ignored_during_execution


class NodeAffinityArgs(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    added_affinity: AddedAffinity = AddedAffinity()
    """Rules for all instances of the profile, in addition to their own."""


class NodeAffinity(PreFilterPlugin, IncrementalFilter, PreScorePlugin, IncrementalScore):
    """A `should` rule must hold until it is relaxed; then it is the strongest preference."""

    name = "NodeAffinity"
    Args = NodeAffinityArgs
    retry_on = NODE_EVENTS
    by_class = True

    def __init__(self, args: NodeAffinityArgs | None = None) -> None:
        added = (args or NodeAffinityArgs()).added_affinity
        self._required, self._preferred = added.required, added.preferred

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return request.rules.where, request.rules.preferred_where

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        return None if request.rules.where or self._required else SKIP

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        fits = matching_all(request.rules.where, nodes)
        return fits & _any(self._required, nodes) if self._required else fits

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        broken = [where for where in request.rules.where if not matching(where, nodes)[refused].all()]
        said = ["not " + " or ".join(f"`{text}`" for text in where.texts) for where in broken]
        if self._required and not _any(self._required, nodes)[refused].all():
            terms = " or ".join(str(each) for each in self._required)
            said.append(f"not {terms}, which the profile {request.profile} adds")
        return "; ".join(said)

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        return None if request.rules.preferred_where or self._preferred else SKIP

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        sums = np.zeros(len(nodes), dtype=np.int64)
        for where, weight in request.rules.preferred_where:
            sums += weight * matching(where, nodes)
        for each in self._preferred:
            sums += each.weight * _all(each.preference, nodes)
        return sums

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        return scaled(scores)


def _any(terms: Sequence[Term], nodes: Snapshot) -> Mask:
    found = _all(terms[0], nodes)
    for each in terms[1:]:
        found = found | _all(each, nodes)
    return found


def _all(term: Term, nodes: Snapshot) -> Mask:
    fits = np.full(len(nodes), bool(term.rules), dtype=np.bool_)
    for rule in term.rules:
        fits &= passes(rule, nodes)
    return fits
