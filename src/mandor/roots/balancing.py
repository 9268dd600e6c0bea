"""Chooses the data path of services on this node."""

from pathlib import Path
from typing import Literal

from mandor.agent.traffic import Balancing
from mandor.network.addresses import LOOPBACK, ROUTED

BalancerName = Literal["off", "nftables", "relay"]


def make_balancing(name: BalancerName, node: str, data: Path) -> Balancing | None:
    """Return the balancer with its range of virtual addresses; None: services are not balanced on this node."""
    folder = data / "network"
    if name == "nftables":
        from mandor.network.nftables.balancer import NftablesBalancer

        ranges = (ROUTED.ipv4, ROUTED.ipv6)
        return Balancing(NftablesBalancer(node, ranges), ROUTED, folder / "nftables.used")
    if name == "relay":
        from mandor.network.relay.balancer import RelayBalancer

        return Balancing(RelayBalancer(folder / "relay"), LOOPBACK, folder / "relay.used")
    return None
