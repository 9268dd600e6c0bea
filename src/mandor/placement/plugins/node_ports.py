"""NodePorts: filters nodes whose host ports are in use, or that have too few free ports to choose from."""

from collections.abc import Hashable

import numpy as np

from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalFilter, Reach
from mandor.placement.framework.points import CAPACITY_EVENTS, SKIP, PreFilterPlugin, Skip
from mandor.placement.framework.ports import HostPort
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot


class NodePorts(PreFilterPlugin, IncrementalFilter):
    name = "NodePorts"
    retry_on = CAPACITY_EVENTS
    by_class = True

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ROOM

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return request.shape.host_ports, request.shape.any_ports

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        return None if request.shape.host_ports or request.shape.any_ports else SKIP

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        fixed, wanted = request.shape.host_ports, len(request.shape.any_ports)
        fits: Mask = nodes.ports_left >= wanted if wanted else np.ones(len(nodes), dtype=np.bool_)
        for port in fixed:
            fits[[nodes.slots[name] for name in nodes.ports.users(port)]] = False
        if wanted and fixed:
            for slot in (fits & (nodes.ports_left < wanted + len(fixed))).nonzero()[0].tolist():
                fits[slot] = nodes.ports.free_after(nodes.nodes[slot].meta.name, fixed) >= wanted
        return fits

    def filter_slot(self, request: PlacementRequest, nodes: Snapshot, slot: int) -> bool:
        name = nodes.nodes[slot].meta.name
        fixed, wanted = request.shape.host_ports, len(request.shape.any_ports)
        if any(name in nodes.ports.users(port) for port in fixed):
            return False
        return not wanted or nodes.ports.free_after(name, fixed) >= wanted

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        reasons = [_taken(port, nodes, refused) for port in request.shape.host_ports]
        if request.shape.any_ports:
            short = refused & (nodes.ports_left < len(request.shape.any_ports) + len(request.shape.host_ports))
            ranges = sorted({str(nodes.nodes[slot].status.ports) for slot in short.nonzero()[0].tolist()})
            reasons += [f"no free port in {' or '.join(ranges)}"] if ranges else []
        return ", ".join(filter(None, reasons))


def _taken(port: HostPort, nodes: Snapshot, refused: Mask) -> str:
    """Return a message about nodes where the port is in use; empty: it is free on all of them."""
    there = [name for name in nodes.ports.users(port) if refused[nodes.slots[name]]]
    strangers = nodes.ports.strange(port.port)
    whose = " by a program that is not Mandor's" if there and all(name in strangers for name in there) else ""
    return f"{port.protocol} port {port.port} is taken{whose}" if there else ""
