"""Gateways: read the certificates of routes, and report what their proxies have applied."""

from typing import Annotated

from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.access import missing
from mandor.api.applied import NAMESPACES_MOST
from mandor.api.caller import lacks
from mandor.api.gate import Gate
from mandor.api.heartbeat import LIVE_SECONDS
from mandor.api.operation import Call, Operation
from mandor.api.rights import about, allowed_on
from mandor.api.routes.queries import NameQuery
from mandor.api.secret import opened
from mandor.errors import Forbidden, NotFound
from mandor.model.meta import Key
from mandor.model.role import SERVE
from mandor.model.route import TLS_CERTIFICATE, TLS_KEY, Route
from mandor.model.secret import Secret


class ServedCertificate(Struct, frozen=True):
    certificate: str
    """Certificate chain in PEM format."""
    key: str
    """Private key in PEM format."""
    secret_id: str
    """Content id of the secret."""


class GatewayReport(Struct, frozen=True, forbid_unknown_fields=True):
    namespaces: Annotated[dict[str, int], Note(max_length=NAMESPACES_MOST)]
    """Revision of the store that the proxy follows, by namespace with served routes."""


class GatewayTaken(Struct, frozen=True):
    seconds: float
    """Seconds after which the gateway is not waited for any more, unless it has reported again."""


async def certificate(call: Call[NameQuery, None]) -> ServedCertificate:
    """Return the certificate and key of a route. Other values of the secret, and other secrets, are never returned."""
    parts, caller = call.parts, call.caller
    key = Key(Route.kind, call.query.namespace, call.path["name"])
    refusal = Forbidden(
        f"{caller.identity} ({caller.role}) may not read the certificate of {key}", hint=lacks(SERVE, Route.kind)
    )
    if not about(caller.held, SERVE, Route.kind, key.namespace):
        raise refusal
    route = await parts.store.get(key)
    if not isinstance(route, Route):
        raise missing(key) if caller.may(SERVE, Route.kind, key.namespace, key.name) else refusal
    if not allowed_on(caller.held, SERVE, route):
        raise refusal
    secret = await parts.store.get(Key(Secret.kind, key.namespace, route.secret)) if route.secret else None
    if not isinstance(secret, Secret) or not {TLS_CERTIFICATE, TLS_KEY} <= secret.spec.sealed.keys():
        raise NotFound(
            f"{key} has no certificate", hint=f"its secret needs the keys `{TLS_CERTIFICATE}` and `{TLS_KEY}`", key=key
        )
    values = opened(parts.sealer, secret).spec.values
    parts.write_rates.spend(caller.identity, 1)
    await parts.store.commit(parts.auditor.record(caller, SERVE, str(key), call.address))
    return ServedCertificate(values[TLS_CERTIFICATE], values[TLS_KEY], secret.content_id)


async def applied(call: Call[None, GatewayReport]) -> GatewayTaken:
    """Take what a gateway has applied; instances that stop wait for it."""
    caller = call.caller
    for namespace in call.body.namespaces:
        if not about(caller.held, SERVE, Route.kind, namespace):
            raise Forbidden(
                f"{caller.identity} ({caller.role}) may not report for the namespace {namespace[:63]}",
                hint=lacks(SERVE, Route.kind),
            )
    call.parts.heartbeats.gateway_applied(f"{caller.identity}/{call.path['name'][:63]}", call.body.namespaces)
    return GatewayTaken(LIVE_SECONDS)


_SERVERS = Gate(verbs=(SERVE,), kind=Route.kind)

OPERATIONS = [
    Operation(
        method="POST",
        path="/v1/routes/{name}/certificate",
        name="read_route_certificate",
        summary="Read the certificate and key of a route; only for gateways, which have the verb `serve`",
        tag="gateways",
        handler=certificate,
        query=NameQuery,
        result=ServedCertificate,
        gate=_SERVERS,
        refuses=("not_found",),
    ),
    Operation(
        method="POST",
        path="/v1/gateways/{name}/applied",
        name="gateway_applied",
        summary="Report what a gateway has applied; instances that stop wait for it",
        tag="gateways",
        handler=applied,
        body=GatewayReport,
        result=GatewayTaken,
        gate=_SERVERS,
    ),
]
