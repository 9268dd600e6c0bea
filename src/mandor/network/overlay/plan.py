"""Pure translation of the parts of networks into devices, entries, routes and rules, and of differences into commands.

Each network has a bridge with the first address of the node's part. With VXLAN, a device beside the bridge has one
route, one neighbour and one forwarding entry for each other node: nothing is learned from packets.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from mandor.lib.loopback import is_loopback
from mandor.network.base import NetworkPart, Peer

VXLAN_PORT = 4789
FIRST_IDENTIFIER = 0x4D0000
"""VXLAN identifiers of networks are this number plus the number of the network."""
ROUTE_PROTOCOL = "174"
"""Mark of the routes of networks."""
HEADER_BYTES = {4: 50, 6: 70}
"""Bytes that VXLAN adds to each packet, by version of the IP protocol between nodes."""
MTU_LEAST = 1280
"""Smallest packet size that IPv6 allows."""


class Names(NamedTuple):
    """Names of the devices of one network on one node."""

    bridge: str
    vxlan: str


def device_names(node: str, network: str) -> Names:
    digest = hashlib.sha256(f"{node}\0{network}".encode()).hexdigest()[:8]
    return Names(f"mdn{digest}", f"mdx{digest}")


def device_mac(number: int, index: int) -> str:
    """Return the address of the VXLAN device of a node: all nodes compute the same one."""
    parts = (0x02, 0x4D, number >> 8 & 0xFF, number & 0xFF, index >> 8 & 0xFF, index & 0xFF)
    return ":".join(f"{each:02x}" for each in parts)


def gateway(text: str) -> str:
    """Return the first address of a range, which the bridge of its node has."""
    return str(ip_network(text)[1])


class Tunnel(NamedTuple):
    """Properties of a VXLAN device that cannot be changed once it exists."""

    identifier: int
    local: str


@dataclass
class Devices:
    """Desired or present state of one network."""

    bridge: bool = False
    tunnel: Tunnel | None = None
    mac: str = ""
    mtu: int = 0
    addresses: set[str] = field(default_factory=set)
    """Addresses of the bridge with prefix length."""
    routes: dict[str, str] = field(default_factory=dict)
    """The rest of the route by range."""
    neighbours: dict[str, str] = field(default_factory=dict)
    """Hardware address by address, on the VXLAN device."""
    forwarding: dict[str, str] = field(default_factory=dict)
    """Node address by hardware address, on the VXLAN device."""


def reachable_peers(part: NetworkPart) -> list[Peer]:
    """Return the nodes that packets can be sent to: with an address of the same version that is not a loopback one."""
    own = ip_address(part.address)
    return [
        each
        for each in part.peers
        if not is_loopback(each.address)
        and not own.is_loopback
        and (part.backend == "routed" or ip_address(each.address).version == own.version)
    ]


def desired(part: NetworkPart, names: Names, underlay_mtu: int) -> Devices:
    """Return the state that the node should have. `underlay_mtu`: of the interface with the node's address."""
    own = ip_address(part.address)
    tunnelled = part.backend == "vxlan" and not own.is_loopback
    slices = [each for each in (part.slice4, part.slice6) if each]
    found = Devices(
        bridge=True,
        mtu=max(MTU_LEAST, underlay_mtu - (HEADER_BYTES[own.version] if tunnelled else 0)),
        addresses={f"{gateway(each)}/{ip_network(each).prefixlen}" for each in slices},
    )
    if tunnelled:
        found.tunnel = Tunnel(FIRST_IDENTIFIER + part.number, str(own))
        found.mac = device_mac(part.number, part.index)
    for peer in reachable_peers(part):
        if tunnelled:
            mac = device_mac(part.number, peer.place)
            found.forwarding[mac] = str(ip_address(peer.address))
        for theirs, mine in ((peer.slice4, part.slice4), (peer.slice6, part.slice6)):
            if not theirs or not mine:
                continue
            destination = str(ip_network(theirs))
            if tunnelled:
                found.neighbours[gateway(theirs)] = mac
                found.routes[destination] = f"via {gateway(theirs)} dev {names.vxlan} onlink src {gateway(mine)}"
            elif part.backend == "routed":
                version = ip_address(peer.address).version
                other = "inet6 " if version == 6 and ip_network(theirs).version == 4 else ""
                found.routes[destination] = f"via {other}{ip_address(peer.address)} src {gateway(mine)}"
    return found


def link_commands(names: Names, present: Devices, wanted: Devices) -> Iterator[str]:
    """Yield the commands of `ip -batch` that make devices, addresses, neighbours and routes match."""
    if not present.bridge:
        yield f"link add {names.bridge} type bridge"
    if present.tunnel is not None and present.tunnel != wanted.tunnel:
        yield f"link delete {names.vxlan}"
    recreated = present.tunnel != wanted.tunnel
    if wanted.tunnel is not None and recreated:
        tunnel = f"id {wanted.tunnel.identifier} local {wanted.tunnel.local} dstport {VXLAN_PORT} nolearning"
        yield f"link add {names.vxlan} address {wanted.mac} type vxlan {tunnel}"
        yield f"link set {names.vxlan} addrgenmode none"
    if not present.bridge or present.mtu != wanted.mtu or recreated:
        yield f"link set {names.bridge} mtu {wanted.mtu} up"
        if wanted.tunnel is not None:
            yield f"link set {names.vxlan} mtu {wanted.mtu} up"
    for each in sorted(wanted.addresses - present.addresses):
        # An IPv6 address is used at once: the bridge may have no port yet, and duplicates are impossible.
        yield f"address add {each} dev {names.bridge}{' nodad' if ':' in each else ''}"
    for each in sorted(present.addresses - wanted.addresses):
        yield f"address delete {each} dev {names.bridge}"
    known = {} if recreated else present.neighbours
    for address, mac in wanted.neighbours.items():
        if known.get(address) != mac:
            yield f"neigh replace {address} lladdr {mac} dev {names.vxlan} nud permanent"
    yield from (f"neigh delete {each} dev {names.vxlan}" for each in known if each not in wanted.neighbours)
    lost = recreated or present.addresses != wanted.addresses
    for destination, way in wanted.routes.items():
        if lost or present.routes.get(destination) != way:
            yield f"route replace {destination} {way} proto {ROUTE_PROTOCOL}"


def stale_routes(present: Devices, wanted: Devices) -> Iterator[str]:
    """Yield the commands that remove routes; they may be gone already, together with their device."""
    for destination in present.routes:
        if destination not in wanted.routes:
            yield f"route delete {destination} proto {ROUTE_PROTOCOL}"


def forwarding_commands(names: Names, present: Devices, wanted: Devices) -> Iterator[str]:
    """Yield the commands of `bridge -batch` for the forwarding entries of the VXLAN device."""
    known = {} if present.tunnel != wanted.tunnel else present.forwarding
    for mac, address in wanted.forwarding.items():
        if known.get(mac) != address:
            yield f"fdb replace {mac} dev {names.vxlan} dst {address} self permanent"
    yield from (f"fdb delete {mac} dev {names.vxlan} self" for mac in known if mac not in wanted.forwarding)


def rules(table: str, parts: Sequence[tuple[NetworkPart, Names]]) -> str:
    """Return the packet filter table as one transaction that replaces the earlier one; connections go on.

    An instance sends only from addresses of its node's part; packets of a VXLAN are accepted from the network's nodes
    only; networks do not reach each other; packets that leave the network get an address of the node.
    """
    arriving = "".join(_arriving(part, names) for part, names in parts)
    apart = "".join(_apart(names, [other for _, other in parts if other != names]) for _, names in parts)
    leaving = "".join(_leaving(part, names) for part, names in parts)
    return f"""\
table inet {table}
delete table inet {table}
table inet {table} {{
counter spoofed {{
}}
counter foreign_nodes {{
}}
counter other_networks {{
}}
chain arriving {{
type filter hook prerouting priority raw; policy accept;
{arriving}}}
chain apart {{
type filter hook forward priority -5; policy accept;
{apart}}}
chain leaving {{
type nat hook postrouting priority 90; policy accept;
{leaving}}}
}}
"""


def _arriving(part: NetworkPart, names: Names) -> str:
    lines = [f'iifname "{names.bridge}" ip saddr != {part.slice4} counter name spoofed drop']
    lines.append(
        f'iifname "{names.bridge}" ip6 saddr != {{ ::, fe80::/10{_also(part.slice6)} }} counter name spoofed drop'
    )
    whole = [("ip", part.range4, part.slice4), ("ip6", part.range6, part.slice6)]
    for word, every, own in whole:
        if not every:
            continue
        # Addresses of this node's instances never come from other nodes, and addresses of the network by no other way.
        lines.append(f'iifname != {{ "{names.bridge}", "lo" }} {word} saddr {own} counter name spoofed drop')
        if part.backend == "vxlan":
            inside = f'{{ "{names.bridge}", "{names.vxlan}", "lo" }}'
            lines.append(f"iifname != {inside} {word} saddr {every} counter name spoofed drop")
            lines.append(f'iifname "{names.vxlan}" {word} saddr != {every} counter name spoofed drop')
        else:
            lines.append(
                f'iifname != {{ "{names.bridge}", "lo" }} {word} saddr {every} fib saddr . iif oif missing '
                "counter name spoofed drop"
            )
    if part.backend == "vxlan":
        vxlan = f"udp dport {VXLAN_PORT} @th,96,24 {FIRST_IDENTIFIER + part.number}"
        nodes = sorted(str(ip_address(each.address)) for each in reachable_peers(part))
        for word, number in (("ip", 4), ("ip6", 6)):
            known = [each for each in nodes if ip_address(each).version == number]
            others = f"{word} saddr != {{ {', '.join(known)} }}" if known else f"meta nfproto ipv{number}"
            lines.append(f"{vxlan} {others} counter name foreign_nodes drop")
    return _joined(lines)


def _also(text: str) -> str:
    return f", {text}" if text else ""


def _apart(names: Names, others: Iterable[Names]) -> str:
    devices = ", ".join(f'"{name}"' for other in others for name in other)
    if not devices:
        return ""
    own = f'{{ "{names.bridge}", "{names.vxlan}" }}'
    return f"iifname {own} oifname {{ {devices} }} counter name other_networks drop\n"


def _leaving(part: NetworkPart, names: Names) -> str:
    lines = []
    for word, every, own in (("ip", part.range4, part.slice4), ("ip6", part.range6, part.slice6)):
        if every:
            # The node itself, and containers on other networks of its engines, use the address of the bridge.
            lines.append(
                f"{word} daddr {every} {word} daddr != {own} {word} saddr != {every} snat {word} to {gateway(own)}"
            )
            lines.append(f'oifname != "{names.bridge}" {word} saddr {own} {word} daddr != {every} masquerade')
    return _joined(lines)


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{each}\n" for each in lines)
