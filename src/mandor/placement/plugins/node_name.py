"""NodeName: an instance with a pinned node is placed there or nowhere."""

from collections.abc import Hashable

import numpy as np

from mandor.model.node import Node
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalFilter, Reach
from mandor.placement.framework.points import NODE_EVENTS, SKIP, PreFilterPlugin, Skip
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot


class NodeName(PreFilterPlugin, IncrementalFilter):
    name = "NodeName"
    retry_on = NODE_EVENTS
    by_class = True

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return request.pin

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        return None if request.pin else SKIP

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        fits = np.zeros(len(nodes), dtype=np.bool_)
        slot = nodes.slots.get(request.pin)
        if slot is not None:
            fits[slot] = True
        return fits

    def rules_out(self, request: PlacementRequest, node: Node) -> bool:
        return bool(request.pin) and node.meta.name != request.pin

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        return f"not {request.pin}"
