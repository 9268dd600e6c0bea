"""Workload identity: tokens for the tasks of a node, the keys to verify them, and secrets for trusted workloads."""

import secrets
from typing import Annotated, Any

from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.access import missing
from mandor.api.caller import lacks
from mandor.api.cluster import read_cluster
from mandor.api.gate import Gate
from mandor.api.operation import Call, Operation
from mandor.api.rights import about, allowed_on
from mandor.api.routes.queries import NameQuery
from mandor.api.secret import opened
from mandor.errors import Forbidden, NotFound
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.role import READ_VALUE
from mandor.model.secret import Secret
from mandor.model.task import Identity
from mandor.model.workload import Release

ALGORITHM = "ES256"
DEFAULT_NAME = "default"


class IdentityRequest(Struct, frozen=True, forbid_unknown_fields=True):
    uid: Annotated[str, Note(max_length=64)]
    """Uid of the instance, which distinguishes it from a later one of the same name."""
    task: Annotated[str, Note(max_length=63)]


class IssuedIdentity(Struct, frozen=True):
    token: str
    seconds: float
    """Lifetime of the token."""


async def issue(call: Call[NameQuery, IdentityRequest]) -> IssuedIdentity:
    """Issue an identity token to the node that runs the instance, while it runs."""
    parts, caller, wanted = call.parts, call.caller, call.body
    key = Key(Instance.kind, call.query.namespace, call.path["name"])
    if not caller.node:
        raise Forbidden(f"{caller.identity} ({caller.role}) may not get identities of instances")
    found = await parts.store.get(key)
    if not isinstance(found, Instance) or found.node != caller.node or found.meta.uid != wanted.uid:
        raise Forbidden(f"{key} is not an instance of {caller.identity}")
    if found.phase.over:
        raise Forbidden(f"{key} has ended and gets no identity")
    identity = await _identity_of(call, found, wanted.task)
    cluster = await read_cluster(parts.store)
    now, lasts, spec = parts.clock.now(), float(identity.ttl), found.spec
    token = await parts.identities.sign(
        {
            "iss": parts.settings.identity_issuer or parts.settings.address,
            "sub": ":".join(("mandor", cluster.id, found.meta.namespace, spec.workload, identity.name or DEFAULT_NAME)),
            "aud": list(identity.audience),
            "iat": int(now),
            "nbf": int(now),
            "exp": int(now + lasts),
            "jti": secrets.token_hex(16),
            "cluster": cluster.id,
            "namespace": found.meta.namespace,
            "workload": spec.workload,
            "group": spec.group,
            "task": wanted.task,
            "instance": found.meta.name,
            "uid": found.meta.uid,
            "node": spec.node,
        }
    )
    return IssuedIdentity(token, lasts)


async def _identity_of(call: Call[Any, Any], instance: Instance, task: str) -> Identity:
    release = await call.parts.store.get(Key(Release.kind, instance.meta.namespace, instance.spec.release))
    group = release.spec.groups.get(instance.spec.group) if isinstance(release, Release) else None
    form = group.form(instance.spec.variant) if group is not None else None
    found = form.tasks[task].identity if form is not None and task in form.tasks else None
    if found is None:
        raise NotFound(f"task {task} of {instance.key} has no `identity`")
    return found


class Discovery(Struct, frozen=True):
    """OpenID discovery document."""

    issuer: str
    jwks_uri: str
    response_types_supported: tuple[str, ...] = ("id_token",)
    subject_types_supported: tuple[str, ...] = ("public",)
    id_token_signing_alg_values_supported: tuple[str, ...] = (ALGORITHM,)


class Jwks(Struct, frozen=True):
    keys: list[dict[str, str]]


async def discovery(call: Call[None, None]) -> Discovery:
    issuer = call.parts.settings.identity_issuer or call.parts.settings.address
    return Discovery(issuer, f"{issuer.rstrip('/')}/v1/jwks")


async def jwks(call: Call[None, None]) -> Jwks:
    return Jwks(await call.parts.identities.published())


class SecretValue(Struct, frozen=True):
    data: dict[str, str]
    """Values by key; a secret with a single value has the key `value`."""


async def read_value(call: Call[NameQuery, None]) -> SecretValue:
    """Return the values of a secret to a workload of a trusted issuer whose role has `read-value`; never to people."""
    parts, caller = call.parts, call.caller
    key = Key(Secret.kind, call.query.namespace, call.path["name"])
    refusal = Forbidden(
        f"{caller.identity} ({caller.role}) may not read the value of {key}", hint=lacks(READ_VALUE, Secret.kind)
    )
    if not caller.workload or not about(caller.held, READ_VALUE, Secret.kind, key.namespace):
        raise refusal
    found = await parts.store.get(key)
    if isinstance(found, Secret) and not allowed_on(caller.held, READ_VALUE, found):
        raise refusal
    if not isinstance(found, Secret):
        if caller.may(READ_VALUE, Secret.kind, key.namespace, key.name):
            raise missing(key)
        raise refusal
    values = opened(parts.sealer, found).spec.values
    parts.write_rates.spend(caller.identity, 1)
    await parts.store.commit(parts.auditor.record(caller, READ_VALUE, str(key), call.address))
    return SecretValue(dict(values))


OPERATIONS = [
    Operation(
        method="POST",
        path="/v1/instances/{name}/identity",
        name="issue_identity",
        summary="Issue an identity token for a task; only for the node that runs the instance",
        tag="identity",
        handler=issue,
        query=NameQuery,
        body=IdentityRequest,
        result=IssuedIdentity,
        gate=Gate(frozenset({"node"}), users=False),
        refuses=("not_found",),
    ),
    Operation(
        method="GET",
        path="/v1/secrets/{name}/value",
        name="read_secret_value",
        summary="Read the values of a secret; only for workload identities with `read-value`",
        tag="identity",
        handler=read_value,
        query=NameQuery,
        result=SecretValue,
        gate=Gate(verbs=(READ_VALUE,), kind=Secret.kind),
        refuses=("not_found",),
    ),
    Operation(
        method="GET",
        path="/v1/jwks",
        name="jwks",
        summary="List the public keys that verify workload identities",
        tag="identity",
        handler=jwks,
        result=Jwks,
        open=True,
    ),
    Operation(
        method="GET",
        path="/.well-known/openid-configuration",
        name="openid_configuration",
        summary="Read the OpenID discovery document for workload identities",
        tag="identity",
        handler=discovery,
        result=Discovery,
        open=True,
    ),
]
