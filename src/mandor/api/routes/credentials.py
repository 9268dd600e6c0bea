"""Credentials of nodes: an agent renews its own when it is told to or the time has come; both are good for a while."""

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
    """How long the old one is still good."""


class NewSecret(Struct, frozen=True, forbid_unknown_fields=True):
    secret: Annotated[str, Note(description="The secret half of its next credential.", pattern="^[0-9a-f]{64}$")]
    csr: Annotated[
        str,
        Note(
            description="A certificate signing request (PEM) for its next key; empty: the key stays.",
            max_length=REQUEST_BYTES_MOST,
        ),
    ] = ""


class Renewed(Struct, frozen=True):
    until: float
    """So long the old one is good."""
    renew_seconds: float | None = None
    """After so long its agent is to renew the new one; absent: when it is told to."""


async def order_renewal(call: Call[None, Renew]) -> Node:
    """The agent does it, for nobody else knows what it shows."""
    call.caller.require("update", "token", what="have credentials of nodes renewed")
    check_servers(call.parts)
    return await _until_taken(lambda: _order(call))


async def _order(call: Call[None, Renew]) -> Node:
    parts, node = call.parts, await _node(call)
    if RENEWS not in node.status.facts:
        name, version = node.meta.name, node.status.agent_version or "unknown"
        raise Unsupported(
            f"the agent of {name}, version {version}, cannot renew its credential",
            hint="upgrade it; or delete the node, and its agent joins anew",
            node=name,
        )
    renewal = Renewal(parts.clock.now(), call.body.overlap_seconds)
    ordered = node.changed(spec=msgspec.structs.replace(node.spec, renewal=renewal))
    record = parts.auditor.of_commit(call.caller, "renew", call.address, [(Put(ordered), node)])
    return ordered.stamped(version=await parts.store.commit(Put(ordered), *record))


async def renew(call: Call[None, NewSecret]) -> Renewed:
    """By the node itself, which has written down what it is to be; saying it again changes nothing."""
    if call.caller.node != call.path["name"]:
        raise Forbidden(f"{call.caller.identity} may not renew the credential of {call.path['name']}")
    check_servers(call.parts)
    return await _until_taken(lambda: _renew(call))


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
        # Whoever got hold of an old one must not be able to lock the node out.
        raise Forbidden(f"this is not the credential of {node.meta.name} any more, and cannot renew it")
    bound = certificate_for(call, call.body.csr).key if call.body.csr and may_issue(call) else token.spec.key
    made = _following(token, call.body.secret, bound, parts.clock.now(), node.spec.renewal or Renewal(0.0))
    done = node.changed(spec=msgspec.structs.replace(node.spec, renewal=None))
    record = parts.auditor.of_commit(caller, "renew", call.address, [(Put(made), token)])
    await parts.store.commit(Put(made), Put(done), *record)
    if parts.recorder is not None:
        parts.recorder.note(done, "CredentialRenewed", f"{node.meta.name} has another credential")
    assert made.spec.former is not None
    return Renewed(made.spec.former.until, renew_seconds(parts, made))


def _following(token: Token, secret: str, key: str, now: float, order: Renewal) -> Token:
    """Another token in the place of this one, so that its age is its own; it is good for as long as this one was."""
    spec = msgspec.structs.replace(
        token.spec,
        hash=hash_secret(secret),
        key=key,
        former=token.followed(now, order.overlap_seconds),
        expires_at=now + token.lasts_seconds if token.spec.expires_at else 0.0,
    )
    return token.changed(meta=msgspec.structs.replace(token.meta, uid="", created_at=0.0), spec=spec)


async def _until_taken(once: Callable[[], Awaitable[T]]) -> T:
    """Others write to nodes, too."""
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
        summary="Tell a node's agent to renew its credential; the old one is good for a while yet",
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
        summary="The next credential of the node that asks",
        tag="nodes",
        gate=Gate(frozenset({"node"}), users=False),
        handler=renew,
        body=NewSecret,
        result=Renewed,
        refuses=("not_found", "conflict", "unsupported"),
    ),
]
