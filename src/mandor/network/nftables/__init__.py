"""The L4 balancer of agents that run as root: nftables."""

from mandor.network.nftables.balancer import NftablesBalancer

__all__ = ["NftablesBalancer"]
