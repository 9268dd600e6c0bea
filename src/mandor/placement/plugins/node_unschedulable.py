"""NodeUnschedulable: filters nodes that are cordoned or not ready.

Daemons are placed on cordoned nodes, too, unless the node is drained.
"""

from collections.abc import Hashable

from mandor.model.node import Node
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalFilter, Reach
from mandor.placement.framework.points import NODE_EVENTS, tally
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Health, Snapshot


class NodeUnschedulable(IncrementalFilter):
    name = "NodeUnschedulable"
    retry_on = NODE_EVENTS
    by_class = True

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return request.daemon

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        daemon = request.daemon
        return nodes.health.where((self.name, daemon), lambda each: each.open(daemon=daemon))

    def rules_out(self, request: PlacementRequest, node: Node) -> bool:
        return not Health.of(node).open(daemon=request.daemon)

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        return tally(_reason(nodes.health[int(slot)], daemon=request.daemon) for slot in refused.nonzero()[0])


def _reason(health: Health, *, daemon: bool) -> str:
    if daemon:
        return "drained" if health.drained else health.phase.value
    return "cordoned" if health.cordoned else health.phase.value
