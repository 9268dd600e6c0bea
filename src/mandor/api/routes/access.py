"""Routes about the caller: `whoami`, `can-i`, and the settings for logins."""

from typing import Annotated

from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.caller import PARTS
from mandor.api.gate import Gate
from mandor.api.operation import Call, Operation
from mandor.api.rights import allowed
from mandor.errors import Invalid
from mandor.lib.words import did_you_mean
from mandor.model.codec import KINDS
from mandor.model.role import VERBS, RoleRule

_PLURALS = {kind.plural: name for name, kind in KINDS.items()}


class WhoAmI(Struct, frozen=True, kw_only=True):
    identity: str
    role: str
    """A built-in role or the name of a `kind: role`; several roles are joined by `+`."""
    namespaces: tuple[str, ...]
    """Namespaces of the role; `*`: all."""
    rules: tuple[RoleRule, ...]
    """Rights of the caller as rules; empty for nodes, join tokens and components."""


class CanQuery(Struct, frozen=True, forbid_unknown_fields=True):
    verb: Annotated[str, Note(max_length=63)]
    kind: Annotated[str, Note(max_length=63)]
    namespace: Annotated[str, Note(max_length=63)] = ""
    name: Annotated[str, Note(description="Absent: all objects of the kind.", max_length=253)] = ""


class Can(Struct, frozen=True, kw_only=True):
    allowed: bool
    reason: str


class LoginAbout(Struct, frozen=True, omit_defaults=True):
    """Settings for logins of people."""

    issuer: str = ""
    """URL of the OpenID provider; empty: there is none, and people need tokens."""
    client_id: str = ""
    scopes: tuple[str, ...] = ()


async def login(call: Call[None, None]) -> LoginAbout:
    issuers = call.parts.auth.issuers
    if issuers is None or issuers.default is None:
        return LoginAbout()
    return LoginAbout(issuers.default.url, issuers.default.audience[0], call.parts.settings.login_scopes)


async def whoami(call: Call[None, None]) -> WhoAmI:
    caller = call.caller
    return WhoAmI(
        identity=caller.identity, role=caller.role, namespaces=tuple(sorted(caller.namespaces)), rules=caller.held
    )


async def can(call: Call[CanQuery, None]) -> Can:
    query, caller = call.query, call.caller
    kind = _PLURALS.get(query.kind, query.kind)
    if query.verb not in VERBS:
        raise Invalid(f"there is no verb {query.verb!r}", hint=did_you_mean(query.verb, VERBS), parameter="verb")
    if kind not in KINDS:
        raise Invalid(f"there is no kind {query.kind!r}", hint=did_you_mean(query.kind, KINDS), parameter="kind")
    if not caller.user:
        return Can(allowed=False, reason=f"{caller.identity} is a part of the cluster and has no rules")
    namespace = query.namespace if KINDS[kind].namespaced else ""
    if caller.may(query.verb, kind, namespace, query.name):
        return Can(allowed=True, reason=f"a rule of the role {caller.role} allows it")
    if allowed(caller.held, query.verb, kind, namespace, query.name):
        return Can(allowed=False, reason="only workload identities read the values of secrets")
    return Can(allowed=False, reason=f"no rule of the role {caller.role} allows it")


OPERATIONS = [
    Operation(
        method="GET",
        path="/v1/login",
        name="login_about",
        summary="Read the OpenID provider that `mandor login` uses",
        tag="access",
        handler=login,
        result=LoginAbout,
        open=True,
    ),
    Operation(
        method="GET",
        path="/v1/whoami",
        name="whoami",
        summary="Read the identity, role and rules of the caller",
        tag="access",
        gate=Gate(PARTS),
        handler=whoami,
        result=WhoAmI,
    ),
    Operation(
        method="GET",
        path="/v1/can-i",
        name="can_i",
        summary="Check whether the caller may use a verb on objects of a kind",
        tag="access",
        gate=Gate(PARTS),
        handler=can,
        query=CanQuery,
        result=Can,
    ),
]
