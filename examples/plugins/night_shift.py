"""NightShift: instances of one namespace go only to nodes that are labelled for it. The vector form of a Filter."""

from mandor.placement.framework.ask import Ask
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import NODES, SKIP, FilterPlugin, PreFilterPlugin, Skip
from mandor.placement.framework.snapshot import Snapshot


class NightShift(PreFilterPlugin, FilterPlugin):
    name = "NightShift"
    retry_on = NODES

    def pre_filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Skip | None:
        return None if ask.key.namespace == "night" else SKIP

    def filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Mask:
        # Each distinct value of the label is looked at once, however many nodes there are.
        return nodes.fact("shift").where(self.name, lambda value: value == ("night",))

    def why(self, ask: Ask, nodes: Snapshot, refused: Mask) -> str:
        return "not on the night shift"
