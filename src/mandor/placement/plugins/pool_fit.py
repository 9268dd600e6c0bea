"""PoolFit: filters nodes by pool, and nodes that are dedicated to other workloads."""

from collections.abc import Hashable

from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.identity import Selector
from mandor.placement.framework.incremental import IncrementalFilter, Reach
from mandor.placement.framework.points import CAPACITY_EVENTS, SKIP, PreFilterPlugin, Skip
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot


class PoolFit(PreFilterPlugin, IncrementalFilter):
    name = "PoolFit"
    retry_on = CAPACITY_EVENTS
    by_class = True

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.CLUSTER if request.shape.dedicated or nodes.anyone_dedicated() else Reach.ATTRIBUTES

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return request.shape.pool, request.shape.dedicated

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        plain = request.shape.pool is None and not request.shape.dedicated
        return SKIP if plain and not nodes.anyone_dedicated() else None

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        fits = _ours(request, nodes)
        if request.shape.pool is not None:
            fits = fits & _in_pool(request.shape.pool, nodes)
        if request.shape.dedicated:
            fits = fits & _without_others(request, nodes)
        return fits

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        said = []
        left = refused
        if request.shape.pool is not None:
            inside = _in_pool(request.shape.pool, nodes)
            if not inside[left].all():
                said.append(f"not in the pool {request.shape.pool}")
            left = left & inside
        ours = _ours(request, nodes)
        if not ours[left].all():
            said.append("dedicated to another workload")
        if (left & ours).any():
            said.append("others are on the node that it wants for itself")
        return ", ".join(said)


def _in_pool(wanted: str, nodes: Snapshot) -> Mask:
    return nodes.pools.where(("PoolFit", wanted), lambda pool: pool == wanted)


def _ours(request: PlacementRequest, nodes: Snapshot) -> Mask:
    """Return the nodes that are not dedicated to another workload."""
    owner = nodes.dedicated_to
    ours: Mask = (owner == 0) | (owner == nodes.owner(request.identity.owner))
    return ours


def _without_others(request: PlacementRequest, nodes: Snapshot) -> Mask:
    identity = request.identity
    own = nodes.topology.domains(Selector(frozenset({identity.namespace}), identity.workload), "node").at_nodes
    alone: Mask = nodes.instances == own
    return alone
