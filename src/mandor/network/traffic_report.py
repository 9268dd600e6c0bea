"""State of a service in the data path of one node, as the agent reports it to a session."""

from msgspec import Struct


class ReportedEndpoint(Struct, frozen=True, gc=False, omit_defaults=True):
    """One address that receives traffic."""

    address: str
    port: int
    instance: str = ""
    """Name of the instance; empty for an address outside of the cluster."""
    node: str = ""
    weight: int = 100


class PortTraffic(Struct, frozen=True, gc=False, omit_defaults=True):
    """One port of a service in the data path of a node, with counters since the data path started."""

    port: str
    """Name of the port."""
    number: int
    protocol: str
    addresses: tuple[str, ...] = ()
    """Virtual addresses on this node."""
    endpoints: tuple[ReportedEndpoint, ...] = ()
    connections: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    failures: int = 0


class TrafficReport(Struct, frozen=True, gc=False, omit_defaults=True):
    """The data path of one node for one service."""

    node: str
    problem: str = ""
    """Reason why the node does not balance the service; empty: it does."""
    ports: tuple[PortTraffic, ...] = ()
    excluded: dict[str, str] = {}
    """Addresses of `external` that get no traffic from this node, with their reasons."""
