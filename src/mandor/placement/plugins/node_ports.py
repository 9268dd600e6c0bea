"""NodePorts: a port of the node itself belongs to one instance."""

from collections.abc import Hashable

import numpy as np

from mandor.placement.framework.ask import Ask, HostPort
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import ANYTHING, SKIP, FilterPlugin, PreFilterPlugin, Reach, Skip
from mandor.placement.framework.snapshot import Snapshot


class NodePorts(PreFilterPlugin, FilterPlugin):
    name = "NodePorts"
    retry_on = ANYTHING
    by_class = True

    def reach(self, ask: Ask, nodes: Snapshot) -> Reach:
        return Reach.ROOM

    def goes_by(self, ask: Ask) -> Hashable:
        return ask.shape.host_ports

    def pre_filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Skip | None:
        return None if ask.shape.host_ports else SKIP

    def filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Mask:
        fits = np.ones(len(nodes), dtype=np.bool_)
        for port in ask.shape.host_ports:
            fits[[nodes.slots[name] for name in nodes.port_users(port)]] = False
        return fits

    def filter_slot(self, ask: Ask, nodes: Snapshot, slot: int) -> bool:
        name = nodes.nodes[slot].meta.name
        return not any(name in nodes.port_users(port) for port in ask.shape.host_ports)

    def why(self, ask: Ask, nodes: Snapshot, refused: Mask) -> str:
        taken = [port for port in ask.shape.host_ports if any(_refused(port, nodes, refused))]
        return ", ".join(f"{port.protocol} port {port.port} is taken" for port in taken)


def _refused(port: HostPort, nodes: Snapshot, refused: Mask) -> list[bool]:
    return [bool(refused[nodes.slots[name]]) for name in nodes.port_users(port)]
