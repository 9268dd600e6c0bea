"""Which requests a route receives, and what gateways serve: pure. Gateways and the route controller use it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from mandor.model.route import Route, RouteSpec
from mandor.model.service import Service, choose_port
from mandor.network.base import Endpoint
from mandor.network.endpoints import SeenInstance, Viewpoint, endpoints
from mandor.network.gateway.base import (
    WEIGHT_MOST,
    CertificateKey,
    ChallengeKey,
    GatewayRoute,
    GatewayState,
    RouteKey,
)

ACCEPTED = "Accepted"
"""Condition of routes that gateways serve."""
Requests = tuple[object, ...]
"""Identity of the requests that a route receives: two routes with the same one are in conflict."""


def prefix_of(path: str) -> str:
    """Return a path prefix without slashes at its end: `/api/` and `/api` match the same paths."""
    return path.rstrip("/") or "/"


def requests_of(spec: RouteSpec) -> Requests:
    """Return the identity of the requests that a route receives."""
    if spec.protocol == "tcp":
        return ("tcp", spec.port)
    path = prefix_of(spec.path) if spec.path_match == "prefix" else spec.path
    headers = frozenset((name.lower(), value) for name, value in spec.headers.items())
    return ("http", spec.host, spec.path_match, path, headers, frozenset(spec.methods))


def age(route: Route) -> tuple[float, str]:
    """Return a sort key: of two routes for the same requests, the one that was created first receives them."""
    return route.meta.created_at, route.meta.uid


def rank(spec: RouteSpec) -> tuple[int, int, int, bool]:
    """Return a sort key of the routes of one host: the one with the lowest rank that matches receives a request.

    Exact paths come before regular expressions, these before prefixes; then longer paths, more headers, and methods.
    """
    kind = ("exact", "regex", "prefix").index(spec.path_match)
    return kind, -len(spec.path), -len(spec.headers), not spec.methods


def gateway_state(
    routes: Iterable[Route],
    services: Mapping[RouteKey, Service],
    members: Mapping[tuple[str, str], Sequence[SeenInstance]],
    view: Viewpoint,
    certificates: Callable[[CertificateKey], str | None],
) -> GatewayState:
    """Return what a gateway serves: all accepted routes. `services`: by namespace and name."""
    served: list[GatewayRoute] = []
    challenges: dict[ChallengeKey, str] = {}
    taken: set[Requests] = set()
    for route in sorted(routes, key=age):
        accepted = route.status.conditions.get(ACCEPTED)
        requests = requests_of(route.spec)
        if accepted is None or not accepted.ok or requests in taken:
            continue
        taken.add(requests)
        served.append(_served(route, services, members, view))
        for token, answer in route.status.challenges.items():
            challenges.setdefault(ChallengeKey(route.spec.host, token), answer)
    wanted = {each.certificate for each in served if each.certificate is not None}
    return GatewayState(tuple(served), {each: certificates(each) for each in sorted(wanted)}, challenges)


def _served(
    route: Route,
    services: Mapping[RouteKey, Service],
    members: Mapping[tuple[str, str], Sequence[SeenInstance]],
    view: Viewpoint,
) -> GatewayRoute:
    meta, spec = route.meta, route.spec
    parts: list[tuple[int, tuple[Endpoint, ...]]] = []
    first: Service | None = None
    for target in spec.to:
        service = services.get(RouteKey(meta.namespace, target.service))
        name = choose_port(service.spec.port, target.port) if service is not None else None
        if service is None or name is None:
            continue
        first = first or service
        parts.append((target.weight, endpoints(service, name, service.spec.port[name], members, view)))
    return GatewayRoute(
        key=RouteKey(meta.namespace, meta.name),
        spec=spec,
        endpoints=weighted(parts),
        balance=first.spec.balance if first is not None else "round-robin",
        affinity_seconds=float(first.spec.affinity) if first is not None else 0.0,
        certificate=CertificateKey(meta.namespace, route.secret) if route.secret else None,
    )


def weighted(parts: Iterable[tuple[int, Sequence[Endpoint]]]) -> tuple[Endpoint, ...]:
    """Return the endpoints of several services with weights in proportion to the share of each service.

    A service without endpoints leaves its share to the others.
    """
    shares: dict[tuple[str, int], Fraction] = {}
    known: dict[tuple[str, int], Endpoint] = {}
    for weight, found in parts:
        for each in found if weight else ():
            place = each.address, each.port
            known[place] = each
            shares[place] = shares.get(place, Fraction(0)) + Fraction(weight, len(found))
    if not shares:
        return ()
    # Equal shares always have the same weight, so that one more endpoint changes no other one.
    if len(set(shares.values())) == 1:
        return tuple(sorted(each._replace(weight=WEIGHT_MOST // 2) for each in known.values()))
    most = max(shares.values())
    return tuple(
        sorted(each._replace(weight=max(1, round(WEIGHT_MOST * shares[place] / most))) for place, each in known.items())
    )
