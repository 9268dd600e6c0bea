"""Tokens: made once, listed without their secrets, revoked by deleting them."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.access import missing, redacted
from mandor.api.audit import audit
from mandor.api.auth import make_token, node_token_name
from mandor.api.caller import USER_ROLES, Caller
from mandor.api.operation import Call, Operation
from mandor.api.routes.credentials import check_servers
from mandor.api.routes.objects import TRIES, get, list_kind, page_of
from mandor.api.routes.queries import ListQuery, NameQuery
from mandor.api.turn_plan import Lane
from mandor.errors import Conflict, Forbidden, Invalid, Unsupported
from mandor.model.meta import Key, Object, check_name
from mandor.model.node import Node
from mandor.model.record import ALL_NAMESPACES, Former, Role, Token
from mandor.store.base import Delete, Put, Write

Name = Annotated[str, Note(max_length=63)]


class NewToken(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    role: Role
    identity: Annotated[str, Note(description="`user:ani`; the part before the colon may be left out.", max_length=128)]
    namespaces: Annotated[tuple[Name, ...], Note(min_length=1, max_length=100)] = (ALL_NAMESPACES,)
    expires_seconds: Annotated[float, Note(gt=0, le=1e10)] | None = None
    overlap_seconds: Annotated[float, Note(ge=0, le=1e8)] = 3600.0
    """How long the credential that a node's agent has is still good; 0: it ends at once."""


class MadeToken(Struct, frozen=True, kw_only=True):
    token: str
    """What its bearer shows; it is kept nowhere."""
    name: str
    role: Role
    identity: str
    namespaces: tuple[str, ...]
    expires_at: float
    former_until: float = 0.0
    """Until then the credential that the node has is good, too; its agent is to be given the new one. 0: none is."""


def _prefix(role: Role) -> str:
    return "user" if role in USER_ROLES else role


def _identity(role: Role, given: str) -> str:
    prefix, colon, rest = given.partition(":")
    if not colon:
        prefix, rest = _prefix(role), given
    if prefix != _prefix(role):
        raise Invalid(f"a token with the role {role} is for `{_prefix(role)}:…`, not {given!r}", path="identity")
    try:
        check_name(rest, "identity")
    except ValueError as error:
        raise Invalid(str(error), path="identity") from error
    return f"{prefix}:{rest}"


def _check_reach(caller: Caller, wanted: NewToken) -> None:
    """Nobody gives away more than they have."""
    if caller.role != "admin":
        caller.require("admin", what="make tokens")
    if wanted.role in USER_ROLES and ALL_NAMESPACES not in wanted.namespaces:
        lacking = [each for each in wanted.namespaces if not caller.sees(each)]
        if lacking:
            raise Forbidden(f"{caller.identity} has no say in the namespace {lacking[0]}")
        return
    caller.require("admin", what="make tokens for the whole cluster")


async def create(call: Call[None, NewToken]) -> MadeToken:
    wanted, store, clock = call.body, call.parts.store, call.parts.clock
    _check_reach(call.caller, wanted)
    for name in wanted.namespaces:
        if name != ALL_NAMESPACES:
            try:
                check_name(name, "namespace")
            except ValueError as error:
                raise Invalid(str(error), path="namespaces") from error
    if wanted.role not in USER_ROLES and wanted.namespaces != (ALL_NAMESPACES,):
        raise Invalid(f"a token with the role {wanted.role} is for the whole cluster", path="namespaces")
    identity = _identity(wanted.role, wanted.identity)
    expires_at = clock.now() + wanted.expires_seconds if wanted.expires_seconds is not None else 0.0
    name = node_token_name(identity.partition(":")[2]) if wanted.role == "node" else ""
    token, text = make_token(wanted.role, identity, name=name, namespaces=wanted.namespaces, expires_at=expires_at)
    writes: list[Write] = [
        audit(
            clock,
            call.caller,
            "create",
            str(token.key),
            ("spec.role", "spec.identity", "spec.namespaces"),
            call.address,
        )
    ]
    # A node has one credential: a new one takes the place of the old one.
    old = await store.get(token.key)
    former = await _former(call, old, token) if isinstance(old, Token) else None
    if old is not None:
        token = token.changed(spec=msgspec.structs.replace(token.spec, former=former)).stamped(version=old.meta.version)
    call.parts.rates.spend(call.caller.identity, 1)
    await store.commit(Put(token), *writes)
    return MadeToken(
        token=text,
        name=token.meta.name,
        role=wanted.role,
        identity=identity,
        namespaces=wanted.namespaces,
        expires_at=expires_at,
        former_until=former.until if former is not None else 0.0,
    )


async def _former(call: Call[None, NewToken], old: Token, new: Token) -> Former | None:
    """What the node's agent shows until it is given the new one; who has not joined yet has none to wait for."""
    overlap, now = call.body.overlap_seconds, call.parts.clock.now()
    name = old.spec.identity.partition(":")[2]
    if not overlap or await call.parts.store.get(Key(Node.kind, "", name)) is None:
        return None
    check_servers(call.parts)
    if (earlier := old.spec.former) is not None and earlier.until > now:
        # There is room for one, and either of them may be the one that its agent has.
        raise Conflict(
            f"{name} was given another credential a while ago; the one before it ends in {earlier.until - now:.0f} s",
            hint="wait until then; or, with an overlap of 0, end both at once",
            node=name,
        )
    kept = old.followed(now, overlap)
    return Former(kept.hash, min(kept.until, new.ends_at))


class Rotation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    overlap_seconds: Annotated[float, Note(ge=0, le=1e8)] = 3600.0
    """How long the old one is still good."""
    expires_seconds: Annotated[float, Note(gt=0, le=1e10)] | None = None
    """How long the new one is good; absent: as long as the old one was made for."""


async def rotate(call: Call[None, Rotation]) -> MadeToken:
    """Another token for the same bearer; the old one ends after the overlap, and not later than it would have."""
    store, clock, now = call.parts.store, call.parts.clock, call.parts.clock.now()
    old = await get_whole(call)
    spec = old.spec
    wanted = NewToken(role=spec.role, identity=spec.identity, namespaces=spec.namespaces)
    _check_reach(call.caller, wanted)
    if spec.role == "node":
        raise Unsupported(
            f"{old.meta.name} is a node's own credential, and only its agent knows it",
            hint=f"POST /v1/nodes/{spec.identity.partition(':')[2]}/renew-credential tells its agent to renew it",
        )
    lasts = call.body.expires_seconds
    if lasts is None and spec.expires_at:
        lasts = old.lasts_seconds
    made, text = make_token(
        spec.role, spec.identity, namespaces=spec.namespaces, expires_at=now + lasts if lasts is not None else 0.0
    )
    ends = now + call.body.overlap_seconds
    ending = old.changed(spec=msgspec.structs.replace(spec, expires_at=min(ends, spec.expires_at or ends)))
    call.parts.rates.spend(call.caller.identity, 2)
    record = audit(clock, call.caller, "rotate", str(old.key), ("spec.expires_at",), call.address)
    await store.commit(Put(ending), Put(made), record)
    return MadeToken(
        token=text,
        name=made.meta.name,
        role=spec.role,
        identity=spec.identity,
        namespaces=spec.namespaces,
        expires_at=made.spec.expires_at,
    )


async def get_whole(call: Call[Any, Any]) -> Token:
    """As it is stored, for whoever may write it."""
    call.caller.require("admin", what="rotate tokens")
    key = Key("token", "", call.path["name"])
    found = await call.parts.store.get(key)
    if not isinstance(found, Token):
        raise missing(key)
    return found


async def revoke(call: Call[None, None]) -> Object:
    call.caller.require("admin", what="revoke tokens")
    key = Key("token", "", call.path["name"])
    for _ in range(TRIES):
        stored = await call.parts.store.get(key)
        if stored is None:
            break
        call.parts.rates.spend(call.caller.identity, 1)
        record = audit(call.parts.clock, call.caller, "delete", str(key), (), call.address)
        try:
            await call.parts.store.commit(Delete(key, stored.meta.version), record)
        except Conflict:
            continue
        return redacted(stored, call.caller)
    raise missing(key)


async def list_tokens(call: Call[ListQuery, None]) -> object:
    return await list_kind(call, Token)


async def get_token(call: Call[NameQuery, None]) -> object:
    return await get(call, Token)


OPERATIONS = [
    Operation(
        method="GET",
        path="/v1/tokens",
        name="list_tokens",
        summary="List tokens, without their secrets",
        tag="tokens",
        handler=list_tokens,
        query=ListQuery,
        result=page_of(Token),
        lane=Lane.BULK,
    ),
    Operation(
        method="POST",
        path="/v1/tokens",
        name="create_token",
        summary="Make a token; its text is shown this once",
        tag="tokens",
        handler=create,
        body=NewToken,
        result=MadeToken,
        status=201,
        refuses=("conflict", "unsupported"),
    ),
    Operation(
        method="POST",
        path="/v1/tokens/{name}/rotate",
        name="rotate_token",
        summary="Make another token for the same bearer; the old one is good for a while yet",
        tag="tokens",
        handler=rotate,
        body=Rotation,
        result=MadeToken,
        status=201,
        refuses=("not_found", "conflict", "unsupported"),
    ),
    Operation(
        method="GET",
        path="/v1/tokens/{name}",
        name="get_token",
        summary="Read one token, without its secret",
        tag="tokens",
        handler=get_token,
        query=NameQuery,
        result=Token,
        refuses=("not_found",),
    ),
    Operation(
        method="DELETE",
        path="/v1/tokens/{name}",
        name="delete_token",
        summary="Revoke a token; its watches end, too",
        tag="tokens",
        handler=revoke,
        result=Token,
        refuses=("not_found",),
    ),
]
