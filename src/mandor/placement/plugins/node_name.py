"""NodeName: an instance that is meant for one node goes there or nowhere."""

from collections.abc import Hashable

import numpy as np

from mandor.model.node import Node
from mandor.placement.framework.ask import Ask
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import NODES, SKIP, FilterPlugin, PreFilterPlugin, Reach, Skip
from mandor.placement.framework.snapshot import Snapshot


class NodeName(PreFilterPlugin, FilterPlugin):
    name = "NodeName"
    retry_on = NODES
    by_class = True

    def reach(self, ask: Ask, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def goes_by(self, ask: Ask) -> Hashable:
        return ask.pin

    def pre_filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Skip | None:
        return None if ask.pin else SKIP

    def filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Mask:
        fits = np.zeros(len(nodes), dtype=np.bool_)
        slot = nodes.slots.get(ask.pin)
        if slot is not None:
            fits[slot] = True
        return fits

    def rules_out(self, ask: Ask, node: Node) -> bool:
        return bool(ask.pin) and node.meta.name != ask.pin

    def why(self, ask: Ask, nodes: Snapshot, refused: Mask) -> str:
        return f"not {ask.pin}"
