"""The L4 balancer of agents without root: a relay process on loopback addresses."""

from mandor.network.relay.balancer import RelayBalancer

__all__ = ["RelayBalancer"]
