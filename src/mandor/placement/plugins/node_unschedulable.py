"""NodeUnschedulable: nothing new for nodes that are cordoned, silent or not heard yet."""

from collections.abc import Hashable

from mandor.placement.framework.ask import Ask
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import NODES, FilterPlugin, Reach, tally
from mandor.placement.framework.snapshot import Health, Snapshot


class NodeUnschedulable(FilterPlugin):
    name = "NodeUnschedulable"
    retry_on = NODES
    by_class = True

    def reach(self, ask: Ask, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def goes_by(self, ask: Ask) -> Hashable:
        return None

    def filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Mask:
        return nodes.health.where(self.name, lambda health: health.open)

    def why(self, ask: Ask, nodes: Snapshot, refused: Mask) -> str:
        return tally(_reason(nodes.health[int(slot)]) for slot in refused.nonzero()[0])


def _reason(health: Health) -> str:
    return "cordoned" if health.cordoned else health.phase.value
