"""The interface of gateways, and the values that they are given.

A gateway is a proxy that serves routes. The caller computes the whole desired state (`mandor.network.gateway.routing`)
and applies it; the gateway compares it with the state in effect and changes only the difference. Connections and
streams to endpoints that stay are never closed by a change. The proxy keeps working while its caller is down.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from mandor.model.route import RouteSpec
from mandor.network.base import Balance, Endpoint

CHALLENGE_PATH = "/.well-known/acme-challenge/"
WEIGHT_MOST = 256
"""Largest weight of an endpoint."""


class RouteKey(NamedTuple):
    """Identity of a route."""

    namespace: str
    name: str


class CertificateKey(NamedTuple):
    """Identity of the secret with a certificate."""

    namespace: str
    secret: str


class ChallengeKey(NamedTuple):
    """An ACME challenge."""

    host: str
    token: str


@dataclass(frozen=True, slots=True)
class GatewayRoute:
    """A route with the endpoints that receive its requests."""

    key: RouteKey
    spec: RouteSpec
    endpoints: tuple[Endpoint, ...] = ()
    """Endpoints of all services of the route, without duplicates, with weights of 1 to `WEIGHT_MOST`. Empty: requests
    are answered with 503.
    """
    balance: Balance = "round-robin"
    affinity_seconds: float = 0.0
    """Seconds for which a client keeps its endpoint; 0: every request is balanced on its own."""
    certificate: CertificateKey | None = None
    """Certificate of the route's host; None: the route has no HTTPS."""


@dataclass(frozen=True, slots=True)
class GatewayState:
    """Everything that a gateway serves."""

    routes: tuple[GatewayRoute, ...] = ()
    """Routes, the oldest first: of two routes for the same requests, the first one receives them."""
    certificates: Mapping[CertificateKey, str | None] = field(default_factory=dict)
    """Certificate chain and private key as PEM text; None: as it was applied last."""
    challenges: Mapping[ChallengeKey, str] = field(default_factory=dict)
    """Key authorizations, served over HTTP below `CHALLENGE_PATH`."""


class RouteTraffic(NamedTuple):
    """Counters of one route since the proxy started or loaded another configuration."""

    requests: int = 0
    """Requests; connections of a TCP route."""
    errors: int = 0
    """Responses with a status of 500 or above."""
    sent_bytes: int = 0
    """Bytes from clients."""
    received_bytes: int = 0
    """Bytes to clients."""


class Gateway(ABC):
    """A proxy that serves routes."""

    name: ClassVar[str]

    @abstractmethod
    async def probe(self) -> None:
        """Check that the proxy runs; raise `Unavailable` with the reason otherwise."""

    @abstractmethod
    async def apply(self, state: GatewayState) -> Mapping[RouteKey, str]:
        """Serve exactly this state, and return when new requests follow it.

        Returns the routes that the proxy cannot serve, with the reasons; all others are served.
        """

    @abstractmethod
    async def traffic(self) -> Mapping[RouteKey, RouteTraffic]:
        """Return the counters of the routes."""

    @abstractmethod
    async def close(self) -> None:
        """Release what this process holds; the proxy continues."""
