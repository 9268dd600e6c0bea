"""Chooses the data paths of services and of networks on this node."""

import logging
from pathlib import Path
from typing import Literal

from mandor.agent.traffic import Balancing
from mandor.errors import Unavailable
from mandor.network.addresses import LOOPBACK, ROUTED
from mandor.network.base import Overlay

BalancerName = Literal["auto", "off", "nftables", "relay"]
BALANCERS: tuple[BalancerName, ...] = ("nftables", "relay")
log = logging.getLogger(__name__)


OverlayName = Literal["off", "kernel"]


def make_overlay(name: OverlayName, node: str) -> Overlay | None:
    """Return the data path of networks that span nodes; None: the node is part of none."""
    if name == "kernel":
        from mandor.network.overlay.kernel import KernelOverlay

        return KernelOverlay(node)
    return None


def make_balancing(name: BalancerName, node: str, data: Path) -> Balancing | None:
    """Return the balancer with its range of virtual addresses; None: services are not balanced on this node."""
    folder = data / "network"
    if name == "nftables":
        from mandor.network.nftables.balancer import NftablesBalancer

        ranges = (ROUTED.ipv4, ROUTED.ipv6)
        return Balancing(NftablesBalancer(node, ranges, owner=str(data)), ROUTED, folder / "nftables.used")
    if name == "relay":
        from mandor.network.relay.balancer import RelayBalancer

        return Balancing(RelayBalancer(folder / "relay"), LOOPBACK, folder / "relay.used")
    return None


async def choose_balancing(name: BalancerName, node: str, data: Path) -> Balancing | None:
    """Return the balancer of this node, and remove another one that an earlier agent process has used.

    `auto`: nftables if it works on this machine, otherwise the relay.
    """
    if name == "auto":
        name = await _working(node, data)
    await remove_balancing(node, data, except_for=name)
    return make_balancing(name, node, data)


async def _working(node: str, data: Path) -> BalancerName:
    found = make_balancing("nftables", node, data)
    assert found is not None
    try:
        await found.balancer.probe()
    except Unavailable as error:
        log.info("the relay balances services on this node, not nftables: %s", error)
        return "relay"
    return "nftables"


async def remove_balancing(node: str, data: Path, *, except_for: BalancerName = "off") -> None:
    """Remove the data paths that agents of this directory have used."""
    for name in BALANCERS:
        found = make_balancing(name, node, data) if name != except_for else None
        if found is None or not found.marker.exists():
            continue
        try:
            await found.balancer.remove()
        except Unavailable as error:
            log.warning("the data path %s of an earlier agent stays in effect: %s", name, error)
        else:
            found.marker.unlink()
