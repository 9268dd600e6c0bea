"""NodeUnschedulable: nothing new for nodes that are cordoned, silent or not heard yet; under pressure, little."""

from collections.abc import Hashable

from mandor.placement.framework.ask import Ask
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import NODES, FilterPlugin, Reach, tally
from mandor.placement.framework.snapshot import Health, Snapshot

UNIMPORTANT = 0
"""A node that is short of something takes only what has a higher priority than this."""


class NodeUnschedulable(FilterPlugin):
    name = "NodeUnschedulable"
    retry_on = NODES
    by_class = True

    def reach(self, ask: Ask, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def goes_by(self, ask: Ask) -> Hashable:
        return ask.priority > UNIMPORTANT

    def filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Mask:
        important = ask.priority > UNIMPORTANT
        return nodes.health.where((self.name, important), lambda each: each.open and (important or not each.pressed))

    def why(self, ask: Ask, nodes: Snapshot, refused: Mask) -> str:
        return tally(_reason(nodes.health[int(slot)]) for slot in refused.nonzero()[0])


def _reason(health: Health) -> str:
    if health.open:
        return f"short of {', '.join(health.pressed)}"
    return "cordoned" if health.cordoned else health.phase.value
