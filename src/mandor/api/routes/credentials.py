"""Renewal of nodes' credentials, by schedule or on request; the old credential stays valid for an overlap."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.access import missing
from mandor.api.auth import hash_secret, is_current, node_token_name, same_secret
from mandor.api.enrolment import certificate_for, may_issue
from mandor.api.gate import Gate
from mandor.api.operation import Call, Operation
from mandor.api.parts import ApiParts
from mandor.api.renewal import renew_seconds
from mandor.api.routes.objects import TRIES
from mandor.errors import Conflict, Forbidden, Unsupported
from mandor.lib.x509 import REQUEST_BYTES_MOST
from mandor.model.meta import Key
from mandor.model.node import RENEWS, Node, Renewal
from mandor.model.record import Token
from mandor.store.base import Put

T = TypeVar("T")
FEATURE = "credential-renewal"


class Renew(Struct, frozen=True, forbid_unknown_fields=True):
    overlap_seconds: Annotated[float, Note(ge=60, le=1e8)] = 3600.0
    """Time for which the old credential stays valid."""


class NewSecret(Struct, frozen=True, forbid_unknown_fields=True):
    secret: Annotated[str, Note(description="Secret of the next credential.", pattern="^[0-9a-f]{64}$")]
    csr: Annotated[
        str,
        Note(
            description="Certificate signing request (PEM) for the next key; empty: keep the key.",
            max_length=REQUEST_BYTES_MOST,
        ),
    ] = ""


class Renewed(Struct, frozen=True):
    until: float
    """Time until which the old credential is valid."""
    renew_seconds: float | None = None
    """Seconds until the agent renews the new credential; absent: only on request."""


async def order_renewal(call: Call[None, Renew]) -> Node:
    """Request that the agent renews its credential; only the agent can, because it makes the secret."""
    call.caller.require("update", "token", what="renew credentials of nodes")
    check_servers(call.parts)
    return await _retry_conflicts(lambda: _order(call))


async def _order(call: Call[None, Renew]) -> Node:
    parts, node = call.parts, await _node(call)
    if RENEWS not in node.status.facts:
        name, version = node.meta.name, node.status.agent_version or "unknown"
        raise Unsupported(
            f"the agent of {name}, version {version}, cannot renew its credential",
            hint="upgrade the agent, or delete the node and let its agent join again",
            node=name,
        )
    renewal = Renewal(parts.clock.now(), call.body.overlap_seconds)
    ordered = node.changed(spec=msgspec.structs.replace(node.spec, renewal=renewal))
    record = parts.auditor.of_commit(call.caller, "renew", call.address, [(Put(ordered), node)])
    return ordered.stamped(version=await parts.store.commit(Put(ordered), *record))


async def renew(call: Call[None, NewSecret]) -> Renewed:
    """Renew the credential of the calling node; repeating the request with the same secret changes nothing."""
    if call.caller.node != call.path["name"]:
        raise Forbidden(f"{call.caller.identity} may not renew the credential of {call.path['name']}")
    check_servers(call.parts)
    return await _retry_conflicts(lambda: _renew(call))


async def _renew(call: Call[None, NewSecret]) -> Renewed:
    parts, caller, node = call.parts, call.caller, await _node(call)
    key = Key(Token.kind, "", node_token_name(node.meta.name))
    token = await parts.store.get(key)
    if not isinstance(token, Token):
        raise missing(key)
    if same_secret(token, call.body.secret):
        until = token.spec.former.until if token.spec.former is not None else 0.0
        return Renewed(until, renew_seconds(parts, token))
    if not is_current(token, caller.proof):
        # A stolen old credential must not be able to lock the node out.
        raise Forbidden(f"the old credential of {node.meta.name} cannot renew it")
    bound = certificate_for(call, call.body.csr).key if call.body.csr and may_issue(call) else token.spec.key
    made = _successor(token, call.body.secret, bound, parts.clock.now(), node.spec.renewal or Renewal(0.0))
    done = node.changed(spec=msgspec.structs.replace(node.spec, renewal=None))
    record = parts.auditor.of_commit(caller, "renew", call.address, [(Put(made), token)])
    await parts.store.commit(Put(made), Put(done), *record)
    if parts.recorder is not None:
        parts.recorder.note(done, "CredentialRenewed", f"renewed the credential of {node.meta.name}")
    assert made.spec.former is not None
    return Renewed(made.spec.former.until, renew_seconds(parts, made))


def _successor(token: Token, secret: str, key: str, now: float, order: Renewal) -> Token:
    """Return the token that replaces this one, with the same lifetime and a new creation time."""
    spec = msgspec.structs.replace(
        token.spec,
        hash=hash_secret(secret),
        key=key,
        former=token.followed(now, order.overlap_seconds),
        expires_at=now + token.lasts_seconds if token.spec.expires_at else 0.0,
    )
    return token.changed(meta=msgspec.structs.replace(token.meta, uid="", created_at=0.0), spec=spec)


async def _retry_conflicts(once: Callable[[], Awaitable[T]]) -> T:
    """Repeat a write that conflicts with other writers of the node."""
    for attempt in range(TRIES):
        try:
            return await once()
        except Conflict:
            if attempt == TRIES - 1:
                raise
    raise AssertionError("unreachable")


def check_servers(parts: ApiParts) -> None:
    if FEATURE not in parts.everywhere():
        raise Unsupported(
            f"not every server knows `{FEATURE}` yet",
            hint="upgrade all servers first; `mandor get servers` shows their versions",
            feature=FEATURE,
        )


async def _node(call: Call[None, Any]) -> Node:
    key = Key(Node.kind, "", call.path["name"])
    found = await call.parts.store.get(key)
    if not isinstance(found, Node):
        raise missing(key)
    return found


OPERATIONS = [
    Operation(
        method="POST",
        path="/v1/nodes/{name}/renew-credential",
        name="order_renewal",
        summary="Request that an agent renews its node's credential; the old one stays valid for an overlap",
        tag="nodes",
        gate=Gate(verbs=("update",), kind="token"),
        handler=order_renewal,
        body=Renew,
        result=Node,
        status=202,
        refuses=("not_found", "conflict", "unsupported"),
    ),
    Operation(
        method="POST",
        path="/v1/nodes/{name}/credential",
        name="renew_credential",
        summary="Renew the credential of the calling node",
        tag="nodes",
        gate=Gate(frozenset({"node"}), users=False),
        handler=renew,
        body=NewSecret,
        result=Renewed,
        refuses=("not_found", "conflict", "unsupported"),
    ),
]
