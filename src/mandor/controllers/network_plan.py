"""Decides which part of the ranges of a network each node hands out: pure."""

from collections.abc import Container, Iterable
from ipaddress import ip_address

from msgspec.structs import replace

from mandor.controllers.draft import Draft
from mandor.model.network import OVERLAY, Network, NetworkSlice, NetworkStatus
from mandor.model.node import Node

HOLD_SECONDS = 3600.0
"""Seconds for which the part of a removed node is given to no other node: its machine may still run instances."""
NUMBERS = 65_535
"""Most networks of a cluster."""
FULL = "NetworkFull"


def plan_network(network: Network, nodes: Iterable[Node], numbers: Container[int], now: float) -> Draft:
    """Return the write that gives each node that can attach instances a part of the ranges.

    `numbers`: numbers of the other networks. A node keeps its part as long as it exists.
    """
    draft = Draft()
    slices = dict(network.status.slices)
    by_name = {each.meta.name: each for each in nodes}
    for name, each in network.status.slices.items():
        slices[name] = _updated(each, by_name.get(name), now)
        if slices[name].released and now - slices[name].released >= HOLD_SECONDS:
            del slices[name]
        elif slices[name].released:
            draft.again(slices[name].released + HOLD_SECONDS - now)
    candidates = sorted(
        (each for name, each in by_name.items() if name not in slices and can_attach(each)),
        key=lambda each: (each.meta.created_at, each.meta.name),
    )
    inside = [each.meta.name for each in candidates if _inside(network, each)]
    waiting = [each for each in candidates if each.meta.name not in inside]
    used = {each.index for each in slices.values()}
    free = (index for index in range(network.spec.slices) if index not in used)
    without = []
    for node in waiting:
        index = next(free, None)
        if index is None:
            without.append(node.meta.name)
        else:
            slices[node.meta.name] = NetworkSlice(index, node.status.address)
    status = NetworkStatus(
        number=network.status.number or next(each for each in range(1, NUMBERS + 1) if each not in numbers),
        slices=slices,
        message=_message(network, slices, without, inside),
    )
    if status != network.status:
        draft.put(network.changed(status=status))
        if status.message and status.message != network.status.message:
            draft.note(network, FULL if without else "NetworkOverlaps", status.message, warning=True)
    return draft


def can_attach(node: Node) -> bool:
    """Return whether an engine of the node can attach instances to networks, and other nodes can reach the node."""
    return bool(node.status.address) and any(OVERLAY in each.extras for each in node.status.engines.values())


def _updated(known: NetworkSlice, node: Node | None, now: float) -> NetworkSlice:
    if node is None:
        return known if known.released else NetworkSlice(known.index, "", now)
    return replace(known, address=node.status.address or known.address, released=0.0)


def _inside(network: Network, node: Node) -> bool:
    try:
        address = ip_address(node.status.address)
    except ValueError:
        return False
    ranges = (network.spec.range4, network.spec.range6)
    return any(each is not None and address.version == each.version and address in each for each in ranges)


def _message(network: Network, slices: dict[str, NetworkSlice], without: list[str], inside: list[str]) -> str:
    if inside:
        names = ", ".join(sorted(inside)[:3])
        return f"the address of {len(inside)} nodes is inside {network.spec.subnet}, for example {names}"
    if not without:
        return ""
    spec, held = network.spec, sum(bool(each.released) for each in slices.values())
    removed = f", {held} of them by nodes that were removed in the last hour" if held else ""
    names = ", ".join(sorted(without)[:3])
    return (
        f"{len(without)} nodes are not part of the network, for example {names}: "
        f"all {spec.slices} parts (/{spec.node_prefix}) of {spec.subnet} are taken{removed}"
    )
