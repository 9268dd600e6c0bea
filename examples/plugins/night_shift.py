"""NightShift: instances of one namespace go only to nodes that are labelled for it. The vector form of a Filter."""

from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import NODES, SKIP, FilterPlugin, PreFilterPlugin, Skip
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot


class NightShift(PreFilterPlugin, FilterPlugin):
    name = "NightShift"
    retry_on = NODES

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        return None if request.key.namespace == "night" else SKIP

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        # Each distinct value of the label is looked at once, however many nodes there are.
        return nodes.fact("shift").where(self.name, lambda value: value == ("night",))

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        return "not on the night shift"
