"""Plan for the control plane's own machines: nodes whose address or name is that of a server."""

from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

from mandor.model.node import CONTROL_PLANE, Node
from mandor.model.record import Server


def server_hosts(servers: Iterable[Server]) -> frozenset[str]:
    """Return the hosts in the addresses of the servers; loopback addresses are left out, because every machine has
    them."""
    return frozenset(host for each in servers if (host := _host(each.spec.address)))


def with_label(node: Node, hosts: frozenset[str]) -> Node | None:
    """Return the node with the label `control-plane` if a server runs on it; None if the node has the label already,
    with any value, or carries no server."""
    if CONTROL_PLANE in node.meta.labels or not _names(node) & hosts:
        return None
    labels = {**node.meta.labels, CONTROL_PLANE: "true"}
    return node.changed(meta=msgspec.structs.replace(node.meta, labels=labels))


def _host(address: str) -> str:
    try:
        host = (urlsplit(address).hostname or "").lower()
    except ValueError:
        return ""
    try:
        number = ip_address(host)
    except ValueError:
        return "" if host == "localhost" or host.endswith(".localhost") else host
    return "" if number.is_loopback or number.is_unspecified else host


def _names(node: Node) -> set[str]:
    known = (node.status.address, node.meta.name, node.status.facts.get("hostname", ""))
    return {each.lower() for each in known if each}
