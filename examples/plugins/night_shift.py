"""NightShift: instances of the namespace `night` run only on nodes with the label `shift=night`."""

from mandor.plugin import (
    NODE_EVENTS,
    SKIP,
    CycleState,
    FilterPlugin,
    Mask,
    PlacementRequest,
    PreFilterPlugin,
    Skip,
    Snapshot,
)


class NightShift(PreFilterPlugin, FilterPlugin):
    """A Filter that answers for all nodes at once."""

    name = "NightShift"
    retry_on = NODE_EVENTS

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        return None if request.key.namespace == "night" else SKIP

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        # The test is called once for each distinct value of the label, not for each node.
        return nodes.fact("shift").where(self.name, lambda value: value == ("night",))

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        return "not on the night shift"
