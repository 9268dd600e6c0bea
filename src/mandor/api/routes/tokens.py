"""Tokens: create, list without secrets, rotate, and revoke by deleting."""

from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.access import missing, redacted
from mandor.api.audit import Changes
from mandor.api.auth import make_token, node_token_name
from mandor.api.caller import PARTS, USER_ROLES, Caller
from mandor.api.gate import Gate
from mandor.api.grants import known_rules
from mandor.api.http.fair_queue import Lane
from mandor.api.operation import Call, Operation
from mandor.api.parts import ApiParts
from mandor.api.rights import ADMIN, narrowed
from mandor.api.routes.credentials import check_servers
from mandor.api.routes.objects import TRIES, get, list_kind, page_of
from mandor.api.routes.queries import ListQuery, NameQuery
from mandor.api.versions import check_known
from mandor.errors import Conflict, Invalid, Unsupported
from mandor.model.meta import Key, Object, check_labels, check_name
from mandor.model.node import Node
from mandor.model.record import ALL_NAMESPACES, JoinTerms, PreviousSecret, Role, Token
from mandor.model.role import READS
from mandor.store.base import Delete, Put, Store

JOIN_SECONDS = 24 * 3600.0
"""Default lifetime of a join token."""
FEATURE = "join-terms"

Name = Annotated[str, Note(max_length=63)]


class NewToken(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    role: Annotated[str, Note(description="A built-in role, or the name of a `kind: role`.", max_length=253)]
    identity: Annotated[
        str,
        Note(
            description="`user:ani`, or `user:NAMESPACE/ani` for an identity of a namespace; the part before the colon "
            "is optional. Tokens created by an admin of some namespaces always have the second form.",
            max_length=200,
        ),
    ]
    namespaces: Annotated[tuple[Name, ...], Note(min_length=1, max_length=100)] = (ALL_NAMESPACES,)
    expires_seconds: Annotated[float, Note(gt=0, le=1e10)] | None = None
    overlap_seconds: Annotated[float, Note(ge=0, le=1e8)] = 3600.0
    """Time for which the current credential of a node stays valid; 0: it ends at once."""
    uses: Annotated[int, Note(ge=1, le=1_000_000)] | None = None
    """Number of nodes that can join with a join token; absent: not limited."""
    pool: Annotated[str, Note(max_length=63)] = ""
    """The pool of nodes that join with a join token; empty: the agent chooses."""
    labels: Annotated[dict[str, str], Note(max_length=100)] = {}
    """All labels of nodes that join with a join token; empty: the agent chooses."""


class MadeToken(Struct, frozen=True, kw_only=True):
    token: str
    """Text of the token; it is returned only once and not stored."""
    name: str
    role: str
    identity: str
    namespaces: tuple[str, ...]
    expires_at: float
    join: JoinTerms | None = None
    """Limits of a join token; absent: only its expiry."""
    former_until: float = 0.0
    """End of validity of the node's former credential; 0: there is none."""


def _prefix(role: str) -> str:
    return role if role in PARTS else "user"


def _identity(caller: Caller, wanted: NewToken) -> str:
    """Return the identity of a new token: `user:NAME`, or `user:NAMESPACE/NAME` for an identity of a namespace.

    An admin of some namespaces creates only the second form, so such an identity is never one of the whole cluster.
    """
    role = wanted.role
    prefix, colon, rest = wanted.identity.partition(":")
    if not colon:
        prefix, rest = _prefix(role), wanted.identity
    if prefix != _prefix(role):
        raise Invalid(
            f"a token with the role {role} is for `{_prefix(role)}:…`, not {wanted.identity!r}", path="identity"
        )
    scope, slash, name = rest.rpartition("/")
    try:
        check_name(name, "identity")
    except ValueError as error:
        raise Invalid(str(error), path="identity") from error
    if not slash and caller.user and not caller.everywhere:
        scope = min(wanted.namespaces)
    if scope and scope not in wanted.namespaces:
        raise Invalid(
            f"{prefix}:{rest} belongs to the namespace {scope}, which is not among the token's namespaces",
            hint=f"use one of {', '.join(sorted(wanted.namespaces)[:5])} before the slash",
            path="identity",
        )
    return f"{prefix}:{scope}/{name}" if scope else f"{prefix}:{name}"


async def _check_reach(store: Store, caller: Caller, wanted: NewToken) -> None:
    """Raise `Forbidden` if the token would have rights that its creator does not have."""
    caller.require("create", Token.kind, what="create tokens")
    if wanted.role in PARTS:
        caller.require_all(ADMIN, what=f"create tokens with the role {wanted.role}")
        return
    rules = await known_rules(store, wanted.role, path="role")
    caller.require_all(narrowed(rules, frozenset(wanted.namespaces)), what=f"create this token ({wanted.role})")


async def create(call: Call[None, NewToken]) -> MadeToken:
    wanted, store, clock = call.body, call.parts.store, call.parts.clock
    await _check_reach(store, call.caller, wanted)
    for name in wanted.namespaces:
        if name != ALL_NAMESPACES:
            try:
                check_name(name, "namespace")
            except ValueError as error:
                raise Invalid(str(error), path="namespaces") from error
    if wanted.role in PARTS and wanted.namespaces != (ALL_NAMESPACES,):
        raise Invalid(f"a token with the role {wanted.role} is for the whole cluster", path="namespaces")
    identity = _identity(call.caller, wanted)
    terms = _terms(call.parts, wanted)
    lasts = wanted.expires_seconds
    if lasts is None and wanted.role == "join":
        lasts = JOIN_SECONDS
    expires_at = clock.now() + lasts if lasts is not None else 0.0
    name = node_token_name(identity.partition(":")[2]) if wanted.role == "node" else ""
    built_in, custom = _stored_role(wanted.role)
    token, text = make_token(
        built_in,
        identity,
        custom=custom,
        name=name,
        namespaces=wanted.namespaces,
        expires_at=expires_at,
        join=terms,
    )
    check_known(token, call.parts.everywhere)
    # A node has one credential: a new one replaces it.
    old = await store.get(token.key)
    former = await _former(call, old, token) if isinstance(old, Token) else None
    if old is not None:
        token = token.changed(spec=msgspec.structs.replace(token.spec, former=former)).stamped(version=old.meta.version)
    call.parts.write_rates.spend(call.caller.identity, 1)
    record = call.parts.auditor.of_commit(call.caller, "create", call.address, [(Put(token), old)])
    await store.commit(Put(token), *record)
    return MadeToken(
        token=with_fingerprint(call.parts, text),
        name=token.meta.name,
        role=wanted.role,
        identity=identity,
        namespaces=wanted.namespaces,
        expires_at=expires_at,
        join=terms,
        former_until=former.until if former is not None else 0.0,
    )


def with_fingerprint(parts: ApiParts, text: str) -> str:
    """Return the text of a token with the fingerprint of the authority that issues the servers' certificates."""
    authority = parts.authority
    return f"{text}.{authority.fingerprint}" if authority is not None and authority.serves and authority.ready else text


def _terms(parts: ApiParts, wanted: NewToken) -> JoinTerms | None:
    """Return the limits of a join token; raise `Invalid` if they are given for another role."""
    if wanted.uses is None and not wanted.pool and not wanted.labels:
        return None
    if wanted.role != "join":
        raise Invalid(f"uses, pool and labels are for join tokens, not for the role {wanted.role}", path="role")
    if FEATURE not in parts.everywhere():
        raise Unsupported(
            f"not every server supports `{FEATURE}` yet, so not every server would enforce these limits",
            hint="upgrade all servers first; `mandor get servers` shows their versions",
            feature=FEATURE,
        )
    try:
        if wanted.pool:
            check_name(wanted.pool, "pool")
        check_labels(wanted.labels)
    except ValueError as error:
        raise Invalid(str(error), path="pool" if wanted.pool else "labels") from error
    return JoinTerms(uses=wanted.uses, pool=wanted.pool, labels=wanted.labels)


def _stored_role(role: str) -> tuple[Role, str]:
    """Return the stored role of a token, and the name of its custom role."""
    return (cast("Role", role), "") if role in USER_ROLES | PARTS else ("custom", role)


async def _former(call: Call[None, NewToken], old: Token, new: Token) -> PreviousSecret | None:
    """Return the former secret of a node, valid for the overlap; None: the node has not joined, or no overlap."""
    overlap, now = call.body.overlap_seconds, call.parts.clock.now()
    name = old.spec.identity.partition(":")[2]
    if not overlap or await call.parts.store.get(Key(Node.kind, "", name)) is None:
        return None
    check_servers(call.parts)
    if (earlier := old.spec.former) is not None and earlier.until > now:
        # Only one former secret is stored, and the agent may use either of the two.
        raise Conflict(
            f"the former credential of {name} is still valid for {earlier.until - now:.0f} s",
            hint="wait until it ends, or use an overlap of 0, which ends both credentials at once",
            node=name,
        )
    kept = old.followed(now, overlap)
    return PreviousSecret(kept.hash, min(kept.until, new.ends_at))


class Rotation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    overlap_seconds: Annotated[float, Note(ge=0, le=1e8)] = 3600.0
    """Time for which the old token stays valid."""
    expires_seconds: Annotated[float, Note(gt=0, le=1e10)] | None = None
    """Lifetime of the new token; absent: that of the old one."""


async def rotate(call: Call[None, Rotation]) -> MadeToken:
    """Create a token for the same identity; the old one ends after the overlap, or earlier at its own expiry."""
    store, now = call.parts.store, call.parts.clock.now()
    old = await get_whole(call)
    spec = old.spec
    wanted = NewToken(role=spec.custom or spec.role, identity=spec.identity, namespaces=spec.namespaces)
    await _check_reach(store, call.caller, wanted)
    if spec.role == "node":
        raise Unsupported(
            f"{old.meta.name} is the credential of a node, and only its agent can renew it",
            hint=f"POST /v1/nodes/{spec.identity.partition(':')[2]}/renew-credential requests the renewal",
        )
    lasts = call.body.expires_seconds
    if lasts is None and spec.expires_at:
        lasts = old.lasts_seconds
    elif lasts is None and spec.role == "join":
        lasts = JOIN_SECONDS  # Created by a version whose join tokens did not expire.
    made, text = make_token(
        spec.role,
        spec.identity,
        custom=spec.custom,
        namespaces=spec.namespaces,
        expires_at=now + lasts if lasts is not None else 0.0,
        join=spec.join,
    )
    ends = now + call.body.overlap_seconds
    ending = old.changed(spec=msgspec.structs.replace(spec, expires_at=min(ends, spec.expires_at or ends)))
    call.parts.write_rates.spend(call.caller.identity, 2)
    changes: Changes = [(Put(ending), old), (Put(made), None)]
    record = call.parts.auditor.of_commit(call.caller, "rotate", call.address, changes)
    await store.commit(Put(ending), Put(made), *record)
    return MadeToken(
        token=with_fingerprint(call.parts, text),
        name=made.meta.name,
        role=spec.custom or spec.role,
        identity=spec.identity,
        namespaces=spec.namespaces,
        expires_at=made.spec.expires_at,
        join=spec.join,
    )


async def get_whole(call: Call[Any, Any]) -> Token:
    """Return the stored token to a caller that may update tokens."""
    call.caller.require("update", Token.kind, name=call.path["name"], what="rotate tokens")
    key = Key("token", "", call.path["name"])
    found = await call.parts.store.get(key)
    if not isinstance(found, Token):
        raise missing(key)
    return found


async def revoke(call: Call[None, None]) -> Object:
    call.caller.require("delete", Token.kind, name=call.path["name"], what="revoke tokens")
    key = Key("token", "", call.path["name"])
    for _ in range(TRIES):
        stored = await call.parts.store.get(key)
        if stored is None:
            break
        call.parts.write_rates.spend(call.caller.identity, 1)
        gone = Delete(key, stored.meta.version)
        record = call.parts.auditor.of_commit(call.caller, "delete", call.address, [(gone, stored)])
        try:
            await call.parts.store.commit(gone, *record)
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
        gate=Gate(frozenset({"component"}), READS, "token"),
        handler=list_tokens,
        query=ListQuery,
        result=page_of(Token),
        lane=Lane.BULK,
    ),
    Operation(
        method="POST",
        path="/v1/tokens",
        name="create_token",
        summary="Create a token; its text is returned only once",
        tag="tokens",
        gate=Gate(verbs=("create",), kind="token"),
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
        summary="Replace a token; the old one stays valid for an overlap",
        tag="tokens",
        gate=Gate(verbs=("update",), kind="token"),
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
        gate=Gate(frozenset({"component"}), READS, "token"),
        handler=get_token,
        query=NameQuery,
        result=Token,
        refuses=("not_found",),
    ),
    Operation(
        method="DELETE",
        path="/v1/tokens/{name}",
        name="delete_token",
        summary="Revoke a token; its open watches and sessions end",
        tag="tokens",
        gate=Gate(verbs=("delete",), kind="token"),
        handler=revoke,
        result=Token,
        refuses=("not_found",),
    ),
]
