"""NodeUnschedulable: filters nodes that are cordoned or not ready, and limits nodes under pressure by priority.

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

UNIMPORTANT = 0
"""A node under pressure takes only instances with a higher priority than this."""


class NodeUnschedulable(IncrementalFilter):
    name = "NodeUnschedulable"
    retry_on = NODE_EVENTS
    by_class = True

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return request.priority > UNIMPORTANT, request.daemon

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        return nodes.health.where(
            (self.name, request.priority > UNIMPORTANT, request.daemon), lambda each: _takes(each, request)
        )

    def rules_out(self, request: PlacementRequest, node: Node) -> bool:
        return not _takes(Health.of(node), request)

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        return tally(_reason(nodes.health[int(slot)], daemon=request.daemon) for slot in refused.nonzero()[0])


def _takes(health: Health, request: PlacementRequest) -> bool:
    return health.open(daemon=request.daemon) and (request.priority > UNIMPORTANT or not health.pressed)


def _reason(health: Health, *, daemon: bool) -> str:
    if health.open(daemon=daemon):
        return f"short of {', '.join(health.pressed)}"
    if daemon:
        return "drained" if health.drained else health.phase.value
    return "cordoned" if health.cordoned else health.phase.value
