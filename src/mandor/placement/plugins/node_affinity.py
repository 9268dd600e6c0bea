"""NodeAffinity: the `where` rules on nodes, hard, soft and preferred."""

from collections.abc import Hashable

import numpy as np

from mandor.placement.framework.ask import Ask
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.node_rule import keeping, kept
from mandor.placement.framework.points import (
    NODES,
    SKIP,
    FilterPlugin,
    PreFilterPlugin,
    PreScorePlugin,
    Reach,
    ScorePlugin,
    Skip,
    scaled,
)
from mandor.placement.framework.snapshot import Snapshot


class NodeAffinity(PreFilterPlugin, FilterPlugin, PreScorePlugin, ScorePlugin):
    """A `should` rule counts as hard until it is given up, and then as the strongest preference."""

    name = "NodeAffinity"
    retry_on = NODES
    by_class = True

    def reach(self, ask: Ask, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def goes_by(self, ask: Ask) -> Hashable:
        return ask.rules.where, ask.rules.where_wished

    def pre_filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Skip | None:
        return None if ask.rules.where else SKIP

    def filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Mask:
        return keeping(ask.rules.where, nodes)

    def why(self, ask: Ask, nodes: Snapshot, refused: Mask) -> str:
        broken = [where for where in ask.rules.where if not kept(where, nodes)[refused].all()]
        return "; ".join("not " + " or ".join(f"`{text}`" for text in where.texts) for where in broken)

    def pre_score(self, state: CycleState, ask: Ask, nodes: Snapshot, feasible: Mask) -> Skip | None:
        return None if ask.rules.where_wished else SKIP

    def score(self, state: CycleState, ask: Ask, nodes: Snapshot, feasible: Mask) -> Scores:
        sums = np.zeros(len(nodes), dtype=np.int64)
        for where, weight in ask.rules.where_wished:
            sums += weight * kept(where, nodes)
        return sums

    def normalize(self, state: CycleState, ask: Ask, scores: Scores) -> Scores:
        return scaled(scores)
