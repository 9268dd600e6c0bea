"""Decides which routes a workload has, and the conditions of routes: pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from mandor.controllers.draft import Draft
from mandor.model.meta import Key, Meta
from mandor.model.route import Route, RouteCondition, RouteSpec, RouteStatus, RouteTarget
from mandor.model.service import Service, choose_port
from mandor.model.workload import Workload
from mandor.network.gateway.routing import ACCEPTED
from mandor.store.base import Delete, Put

RESOLVED, CERTIFICATE = "Resolved", "Certificate"


class SecretState(NamedTuple):
    """The secret with the certificate of a route, and whether the certificate can be used."""

    content_id: str
    problem: str = ""
    """Why the certificate cannot be used; empty: it can."""
    reason: str = ""
    not_after: float = 0.0


def wanted_routes(workload: Workload) -> dict[str, RouteSpec]:
    """Return the routes that the services of a workload declare with `expose`, by name."""
    found = {}
    for each in workload.spec.services:
        name = each.name or workload.meta.name
        if each.expose is not None:
            to = (RouteTarget(service=name, port=each.expose.port),)
            found[name] = RouteSpec(host=each.expose.host, path=each.expose.path, tls=each.expose.tls, to=to)
    return found


def plan_routes(key: Key, workload: Workload | None, existing: Iterable[Route]) -> Draft:
    """Return the writes that make the routes of a workload match its declaration.

    `existing`: all routes of the namespace. A route that a user or another workload owns is left alone.
    """
    draft = Draft()
    routes = {each.meta.name: each for each in existing}
    wanted = wanted_routes(workload) if workload is not None else {}
    for name, spec in wanted.items():
        known = routes.get(name)
        if known is None:
            meta = Meta(name=name, namespace=key.namespace, labels=dict(workload.meta.labels) if workload else {})
            draft.writes.append(Put(Route(meta=meta, spec=spec, status=RouteStatus(owner=key.name))))
        elif known.status.owner != key.name and workload is not None:
            owner = f"workload {known.status.owner}" if known.status.owner else "an object of kind route"
            draft.note(
                workload,
                "RouteNameTaken",
                f"route {name} is not created: {owner} has this name already",
                warning=True,
            )
        elif known.spec != spec:
            draft.writes.append(Put(known.changed(spec=spec)))
    for name, each in routes.items():
        if each.status.owner == key.name and name not in wanted:
            draft.writes.append(Delete(each.key, each.meta.version))
    return draft


def with_conditions(
    route: Route, oldest: Route, services: Mapping[str, Service], secret: SecretState | None, *, now: float
) -> Route:
    """Return the route with its conditions. `oldest`: the oldest route for the same requests, maybe the route itself.

    `services`: of its namespace, by name. `secret`: None: it does not exist.
    """
    conditions = {ACCEPTED: _accepted(route, oldest), RESOLVED: _resolved(route.spec, services)}
    if route.spec.certificate != "off":
        conditions[CERTIFICATE] = _certificate(route, secret, now)
    content_id = secret.content_id if secret is not None and conditions.get(CERTIFICATE, _OK).ok else ""
    status = replace(route.status, conditions=conditions, secret_id=content_id)
    return route if status == route.status else route.changed(status=status)


_OK = RouteCondition(ok=True, reason="Ready")


def _accepted(route: Route, oldest: Route) -> RouteCondition:
    if oldest.meta.uid == route.meta.uid:
        return RouteCondition(ok=True, reason="Accepted")
    # Callers that may read this route need not be allowed to read the objects of another namespace.
    near = oldest.meta.namespace == route.meta.namespace
    other = f"route {oldest.meta.name}" if near else "a route of another namespace"
    what = "port" if route.spec.protocol == "tcp" else "host, path and conditions"
    return RouteCondition(ok=False, reason="Conflict", message=f"{other} is older and has the same {what}")


def _resolved(spec: RouteSpec, services: Mapping[str, Service]) -> RouteCondition:
    for target in spec.to:
        service = services.get(target.service)
        if service is None:
            return RouteCondition(
                ok=False, reason="ServiceMissing", message=f"there is no service {target.service} in this namespace"
            )
        if service.spec.external_name:
            message = f"service {target.service} stands for the host name {service.spec.external_name}; "
            return RouteCondition(ok=False, reason="ExternalName", message=f"{message}list addresses in `external`")
        if choose_port(service.spec.port, target.port) is None:
            known = ", ".join(service.spec.port) or "none"
            wanted = "TCP port that is the only one or named http" if target.port is None else f"TCP port {target.port}"
            message = f"service {target.service} has no {wanted}; its ports: {known}"
            return RouteCondition(ok=False, reason="PortMissing", message=message)
    return RouteCondition(ok=True, reason="Resolved")


def _certificate(route: Route, secret: SecretState | None, now: float) -> RouteCondition:
    issued = route.status.certificate
    if not route.secret:
        message = issued.message if issued is not None else ""
        return RouteCondition(
            ok=False, reason="NotIssued", message=message or "no certificate has been issued yet; HTTP is served"
        )
    if secret is None:
        message = f"there is no secret {route.secret} in this namespace; create it with `tls.crt` and `tls.key`"
        return RouteCondition(ok=False, reason="SecretMissing", message=message)
    if secret.problem:
        return RouteCondition(ok=False, reason=secret.reason, message=f"secret {route.secret}: {secret.problem}")
    if secret.not_after <= now:
        message = f"the certificate in secret {route.secret} has expired; replace it"
        return RouteCondition(ok=False, reason="Expired", message=message)
    return RouteCondition(ok=True, reason="Ready")


def oldest_of(routes: Sequence[Route]) -> Route:
    """Return the route that was created first."""
    return min(routes, key=lambda each: (each.meta.created_at, each.meta.uid))
