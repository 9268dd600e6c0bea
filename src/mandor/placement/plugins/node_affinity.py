"""NodeAffinity: the `where` rules on nodes, hard, soft and preferred."""

import numpy as np

from mandor.model.placement import Where
from mandor.model.rule import Rule
from mandor.placement.framework.ask import Ask
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import (
    NODES,
    SCORE_MOST,
    SKIP,
    FilterPlugin,
    PreFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    Skip,
    scaled,
)
from mandor.placement.framework.snapshot import Engines, Snapshot

NEGATIVE = frozenset({"!=", "not in", "not exists"})


class NodeAffinity(PreFilterPlugin, FilterPlugin, PreScorePlugin, ScorePlugin):
    """A `should` rule counts as hard until it is given up, and then as the strongest preference."""

    name = "NodeAffinity"
    retry_on = NODES
    by_class = True

    def pre_filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Skip | None:
        return None if ask.hard else SKIP

    def filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Mask:
        fits = np.ones(len(nodes), dtype=np.bool_)
        for where in ask.hard:
            fits &= _kept(where, nodes)
        return fits

    def why(self, ask: Ask, nodes: Snapshot, refused: Mask) -> str:
        broken = [where for where in ask.hard if not _kept(where, nodes)[refused].all()]
        return "; ".join("not " + " or ".join(f"`{text}`" for text in where.texts) for where in broken)

    def pre_score(self, state: CycleState, ask: Ask, nodes: Snapshot, feasible: Mask) -> Skip | None:
        return None if ask.shape.prefer or ask.dropped else SKIP

    def score(self, state: CycleState, ask: Ask, nodes: Snapshot, feasible: Mask) -> Scores:
        sums = np.zeros(len(nodes), dtype=np.int64)
        for where in ask.shape.prefer:
            sums += (where.weight or 1) * _kept(where, nodes)
        for where in ask.given_up:
            sums += SCORE_MOST * _kept(where, nodes)
        return sums

    def normalize(self, state: CycleState, ask: Ask, scores: Scores) -> Scores:
        return scaled(scores)


def _kept(where: Where, nodes: Snapshot) -> Mask:
    """The nodes that keep any of its rules."""
    rules = where.rules
    kept = _passes(rules[0], nodes)
    for rule in rules[1:]:
        kept = kept | _passes(rule, nodes)
    return kept


def _passes(rule: Rule, nodes: Snapshot) -> Mask:
    if rule.fact == "engine":
        return nodes.engines.where(rule, lambda engines: engine_rule(rule, engines))
    return nodes.fact(rule.fact).where(rule, lambda value: rule.test(value[0]))


def engine_rule(rule: Rule, engines: Engines) -> bool:
    """A node has several engines: one that fits is enough, and for a negation none may be what it excludes."""
    names = engines.names
    if not names:
        return rule.test(None)
    return all(map(rule.test, names)) if rule.op in NEGATIVE else any(map(rule.test, names))
