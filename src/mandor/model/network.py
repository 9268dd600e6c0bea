"""Network: addresses for instances that are unique in the cluster and reached from every node of the network."""

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, ClassVar, Literal

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.model.meta import InvalidField, Object, check_name

DEFAULT_NETWORK = "default"
"""Name of the network of groups that name none."""
ENGINE_NETWORK = "engine"
"""Value of `network` of a group that stays on the network of its engine; no network has this name."""
OVERLAY = "overlay"
"""Extra of an engine whose units can be attached to networks of the cluster."""
NETWORK_EXTRA = "network."
"""Prefix of the extra of an engine on a node that is part of a network; the name of the network follows."""
SLICES_MOST = 4096
"""Largest number of nodes in one network."""
NAMESPACES_MOST = 64


class NetworkSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Ranges of addresses, and how packets reach other nodes. Only `namespaces` can be changed later."""

    subnet: str
    """IPv4 range of the network, for example `10.92.0.0/16`."""
    subnet6: str = ""
    """IPv6 range of the network, for example `fd92::/48`. Defaults to none: instances have IPv4 addresses only."""
    backend: Literal["vxlan", "routed"] = "vxlan"
    """How packets reach other nodes: `vxlan` sends them inside UDP packets; `routed` sends them as they are, to nodes
    on the same link, IPv4 only. Defaults to `vxlan`.
    """
    node_prefix: Annotated[int, Bounds(ge=16, le=28)] = 24
    """Prefix length of the part of `subnet` that each node gets: 24 is 253 addresses. Defaults to 24."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose workloads may use the network, at most 64. Defaults to all."""

    def __post_init__(self) -> None:
        range4 = _parse(self.subnet, 4, "subnet", "10.92.0.0/16")
        bits = self.node_prefix - range4.prefixlen
        if bits < 0:
            raise InvalidField(
                f"`node_prefix` {self.node_prefix} is larger than the whole subnet {range4}",
                "node_prefix",
                hint=f"{max(16, range4.prefixlen)} to 28",
            )
        if 1 << bits > SLICES_MOST:
            raise InvalidField(
                f"the subnet {range4} has {1 << bits} slices of /{self.node_prefix}; at most {SLICES_MOST} are allowed",
                "node_prefix",
                hint="a smaller subnet or a smaller `node_prefix`",
            )
        if self.subnet6 and self.backend == "routed":
            raise InvalidField("a `routed` network has IPv4 addresses only", "subnet6", hint="`backend: vxlan`")
        if self.subnet6:
            range6 = _parse(self.subnet6, 6, "subnet6", "fd92::/48")
            if range6.prefixlen + bits > 112:
                raise InvalidField(
                    f"{range6} is too small for {1 << bits} nodes", "subnet6", hint=f"at most /{112 - bits}"
                )
        if len(self.namespaces) > NAMESPACES_MOST:
            raise InvalidField(
                f"{len(self.namespaces)} namespaces; at most {NAMESPACES_MOST} are allowed", "namespaces"
            )
        for each in self.namespaces:
            check_name(each, "namespace")

    @property
    def range4(self) -> IPv4Network:
        return IPv4Network(self.subnet)

    @property
    def range6(self) -> IPv6Network | None:
        return IPv6Network(self.subnet6) if self.subnet6 else None

    @property
    def slices(self) -> int:
        """Number of nodes for which the ranges have room."""
        return 1 << (self.node_prefix - self.range4.prefixlen)

    def slice4(self, index: int) -> IPv4Network:
        """Return the IPv4 range of the node with this number."""
        start = int(self.range4.network_address) + (index << (32 - self.node_prefix))
        return IPv4Network((start, self.node_prefix))

    def slice6(self, index: int) -> IPv6Network | None:
        """Return the IPv6 range of the node with this number; None: the network has no IPv6 addresses."""
        whole = self.range6
        if whole is None:
            return None
        prefix = whole.prefixlen + self.node_prefix - self.range4.prefixlen
        return IPv6Network((int(whole.network_address) + (index << (128 - prefix)), prefix))

    def same_ranges(self, other: "NetworkSpec") -> bool:
        """Return whether both have the same addresses and backend."""
        names = ("subnet", "subnet6", "backend", "node_prefix")
        return all(getattr(self, name) == getattr(other, name) for name in names)


class NetworkSlice(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The part of the ranges that one node hands out."""

    index: int
    """Number of the part: the first is 0."""
    address: str = ""
    """Address of the node, to which other nodes send packets; empty: the node no longer exists."""
    released: float = 0.0
    """Unix time at which the node was found removed; 0: it exists."""


class NetworkStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Written by the network controller."""

    number: int = 0
    """Number of the network, unique in the cluster; the VXLAN identifier is derived from it. 0: not assigned yet."""
    slices: dict[str, NetworkSlice] = {}
    """Parts of the ranges by node. The part of a removed node is kept for an hour."""
    message: str = ""
    """Why nodes are not part of the network, with numbers; empty: all nodes that can be are."""


class Network(Object, frozen=True, tag="network"):
    """Addresses for instances that are unique in the cluster and reached from every node of the network."""

    kind: ClassVar[str] = "network"
    plural: ClassVar[str] = "networks"
    namespaced: ClassVar[bool] = False

    spec: NetworkSpec
    status: NetworkStatus = field(default_factory=NetworkStatus)

    def __post_init__(self) -> None:
        if self.meta.name == ENGINE_NETWORK:
            raise ValueError(f"{ENGINE_NETWORK!r} cannot be the name of a network: it stands for the engine's own")

    @property
    def live_slices(self) -> dict[str, NetworkSlice]:
        """The parts of nodes that exist."""
        return {name: each for name, each in self.status.slices.items() if each.address and not each.released}


def network_extra(network: str) -> str:
    """Return the extra that an engine has on the nodes of a network."""
    return NETWORK_EXTRA + network


def _parse(text: str, version: int, field_name: str, example: str) -> IPv4Network | IPv6Network:
    try:
        found = ip_network(text)
    except ValueError as error:
        raise InvalidField(f"{text[:80]!r} is not a range of addresses: {error}", field_name, hint=example) from None
    if found.version != version:
        raise InvalidField(f"{text} is not an IPv{version} range", field_name, hint=example)
    if str(found) != text:
        raise InvalidField(f"the range {text} is not written in its usual form", field_name, hint=str(found))
    least = (8, 28) if version == 4 else (16, 112)
    if not least[0] <= found.prefixlen <= least[1]:
        raise InvalidField(f"the range {text} is not between /{least[0]} and /{least[1]}", field_name, hint=example)
    if found.is_loopback or found.is_multicast or found.is_link_local or found.is_unspecified:
        raise InvalidField(f"the range {text} cannot hold addresses of instances", field_name, hint=example)
    return found
