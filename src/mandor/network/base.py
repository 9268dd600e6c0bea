"""The interfaces of the data paths of a node, and the values that they are given.

A data path sends traffic of clients to endpoints. The agent computes the whole desired state
(`mandor.network.endpoints`) and applies it to each data path; a data path compares it with the state in effect and
changes only the difference. Data paths keep working while the agent is down: `close` and the end of the agent process
leave them in place.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

Protocol = Literal["tcp", "udp"]
Balance = Literal["round-robin", "least", "hash"]


class Endpoint(NamedTuple):
    """One address and port that receives traffic of a service."""

    address: str
    port: int
    instance: str = ""
    """Name of the instance; empty for an endpoint outside of the cluster."""
    node: str = ""
    """Node of the instance; empty for an endpoint outside of the cluster."""
    weight: int = 100
    """Share of the traffic relative to the other endpoints; 0 gets no new connections."""


class FrontendKey(NamedTuple):
    """Identity of one port of a service."""

    namespace: str
    service: str
    port: str
    """Name of the port."""


@dataclass(frozen=True, slots=True)
class Frontend:
    """One port of a service with the endpoints that receive its traffic, as seen from one node."""

    key: FrontendKey
    addresses: tuple[str, ...]
    """Virtual IPv4 and IPv6 addresses of the service on this node."""
    port: int
    """Port of the service on its virtual addresses."""
    protocol: Protocol
    endpoints: tuple[Endpoint, ...]
    """Sorted by address and port, without duplicates; empty: connections are refused."""
    balance: Balance = "round-robin"
    affinity_seconds: float = 0.0
    """Seconds for which a client keeps its endpoint; 0: every connection is balanced on its own."""


class Traffic(NamedTuple):
    """Counters of one frontend since its data path started."""

    connections: int = 0
    sent_bytes: int = 0
    """Bytes from clients to endpoints."""
    received_bytes: int = 0
    """Bytes from endpoints to clients."""
    failures: int = 0
    """Connections for which no endpoint answered."""


class Balancer(ABC):
    """A data path that balances TCP and UDP connections to virtual addresses over endpoints."""

    name: ClassVar[str]

    @abstractmethod
    async def probe(self) -> None:
        """Check that the data path works on this machine; raise `Unavailable` with the reason otherwise."""

    @abstractmethod
    async def apply(self, frontends: Sequence[Frontend]) -> None:
        """Balance exactly these frontends, and return when new connections follow them.

        Established connections stay with their endpoint, even if it is no longer among the endpoints.
        """

    @abstractmethod
    async def traffic(self) -> Mapping[FrontendKey, Traffic]:
        """Return the counters of the frontends."""

    @abstractmethod
    async def close(self) -> None:
        """Release what this process holds; the data path stays in effect."""

    @abstractmethod
    async def remove(self) -> None:
        """Remove the data path from the machine."""


class ServiceTarget(NamedTuple):
    """One SRV record: a port of a host."""

    host: str
    """Key of the host in the table of names, `<name>.<namespace>`."""
    port: int
    weight: int = 1


class NameRecord(NamedTuple):
    """Answers for one name."""

    addresses: tuple[str, ...] = ()
    """IPv4 and IPv6 addresses."""
    services: tuple[ServiceTarget, ...] = ()
    """SRV records."""
    alias: str = ""
    """Name outside of the cluster that this name stands for (CNAME)."""


@dataclass(frozen=True, slots=True)
class NameTable:
    """Everything that the name server of a node answers by itself."""

    records: Mapping[str, NameRecord]
    """Records by `<name>.<namespace>` in lower case: `shop.default`, `web-0.shop.default`,
    `_http._tcp.shop.default`."""
    clients: Mapping[str, str] = field(default_factory=dict)
    """Namespaces by address of a client: the namespace in which a name without a namespace is looked up."""
    reverse: Mapping[str, str] = field(default_factory=dict)
    """Names (`<name>.<namespace>`) by address, for PTR records."""
    default_namespace: str = "default"
    """Namespace of clients that are not listed."""


class Names(ABC):
    """A name server on this node for every engine. It keeps its last table, and answers while the agent is down."""

    @abstractmethod
    async def open(self) -> str:
        """Start the server, if it does not run, and return the address at which it answers; it is the same each time.

        Raise `Unavailable` with the reason if this machine cannot have the server.
        """

    @abstractmethod
    async def apply(self, table: NameTable) -> None:
        """Answer from exactly this table, and return when queries follow it."""

    @abstractmethod
    async def close(self) -> None:
        """Release what this process holds; the server keeps answering."""

    @abstractmethod
    async def remove(self) -> None:
        """Stop the server."""


class Peer(NamedTuple):
    """Another node of a network."""

    place: int
    """Number of its part of the ranges."""
    address: str
    """Address of the node."""
    slice4: str
    """IPv4 range of its instances."""
    slice6: str = ""
    """IPv6 range of its instances; empty: the network has none."""


@dataclass(frozen=True, slots=True)
class NetworkPart:
    """The part of one network on this node."""

    name: str
    number: int
    """Number of the network in the cluster."""
    backend: Literal["vxlan", "routed"]
    index: int
    """Number of the part of this node."""
    address: str
    """Address of this node, from which packets to other nodes are sent."""
    range4: str
    slice4: str
    range6: str = ""
    """IPv6 range of the whole network; empty: it has none."""
    slice6: str = ""
    peers: tuple[Peer, ...] = ()


class Bridge(NamedTuple):
    """The bridge of a network on this node, to which instances are attached."""

    interface: str
    mtu: int
    """Largest size of a packet, so that it reaches other nodes in one piece."""


class Overlay(ABC):
    """A data path for networks that span nodes: a bridge for each network, and the way to the other nodes."""

    name: ClassVar[str]

    @abstractmethod
    async def probe(self) -> None:
        """Check that the data path works on this machine; raise `Unavailable` with the reason otherwise."""

    @abstractmethod
    async def apply(self, parts: Sequence[NetworkPart]) -> Mapping[str, Bridge]:
        """Make exactly these networks, and return the bridges of those in effect by name of the network.

        Instances that are attached to a bridge stay attached. A network that cannot be made is left out of the result
        and does not affect the others; the reason is in `problems`.
        """

    @property
    @abstractmethod
    def problems(self) -> Mapping[str, str]:
        """Reasons why networks of the last `apply` are not in effect, by name."""

    @abstractmethod
    async def remove(self) -> None:
        """Remove all networks from the machine."""
