"""Nodes join, beat and report what they use."""

from typing import Annotated

import msgspec
from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.access import missing
from mandor.api.audit import audit
from mandor.api.auth import make_token, node_token_name, same_secret
from mandor.api.caller import Caller
from mandor.api.cluster import read_cluster
from mandor.api.heartbeat import Report, UsageReport
from mandor.api.operation import Call, Operation
from mandor.api.parts import ApiParts
from mandor.api.pools import new_node_spec
from mandor.api.renewal import renew_seconds
from mandor.api.request import header
from mandor.api.turn_plan import Lane
from mandor.api.versions import check_skew
from mandor.errors import Conflict, Forbidden, Invalid, NotFound
from mandor.model.meta import Key, Meta, Object, check_name
from mandor.model.node import Node, NodePhase, NodeStatus
from mandor.model.record import ClusterSpec, Hearing, Lease, Token
from mandor.store.base import Put, Write

TRIES = 3


class Join(Struct, frozen=True, forbid_unknown_fields=True):
    address: Annotated[str, Note(description="Where the node is reached; it may change.", max_length=253)] = ""
    pool: Annotated[str, Note(description="For a new node; later it is the users'.", max_length=63)] = "default"
    labels: Annotated[dict[str, str], Note(description="For a new node; later they are the users'.")] = {}
    secret: Annotated[
        str,
        Note(
            description="The secret half of its credential, if the agent chose it: then joining can be repeated.",
            pattern="^([0-9a-f]{64})?$",
        ),
    ] = ""


class Joined(Struct, frozen=True):
    credential: str
    """The node's own token: it is shown this once."""
    cluster: ClusterSpec
    renew_seconds: float | None = None
    """After so long its agent is to renew it; absent: when it is told to."""


class Usages(Struct, frozen=True):
    items: list[UsageReport]
    servers: list[str]
    """Other servers, which hear other nodes: ask them, too."""


async def join(call: Call[None, Join | None]) -> Joined:
    """Name is identity: a known name needs its credential, whatever the address."""
    name, caller = call.path["name"], call.caller
    try:
        check_name(name, "node name")
    except ValueError as error:
        raise Invalid(str(error), path="name") from error
    if caller.role not in {"join", "node", "admin", "component"} or (caller.user and not caller.everywhere):
        raise Forbidden(
            f"{caller.identity} ({caller.role}) may not join nodes", hint="`mandor token create` a join token"
        )
    if caller.role == "node" and caller.node != name:
        raise Forbidden(f"{caller.identity} may not join as {name}")
    check_skew(call.headers)  # not later: whoever is a node already is not given up for its version
    for attempt in range(TRIES):
        try:
            return await _join(call, name, call.body or Join())
        except Conflict as error:
            # Without a key it is our own refusal; with one, somebody wrote in between.
            if "key" not in error.facts or attempt == TRIES - 1:
                raise
    raise AssertionError("unreachable")


async def _join(call: Call[None, Join | None], name: str, given: Join) -> Joined:
    store, address = call.parts.store, given.address
    node = await store.get(Key("node", "", name))
    token = await store.get(Key("token", "", node_token_name(name)))
    cluster = await read_cluster(store)
    writes: list[Write] = []
    credential = (header(call.headers, b"authorization") or "").partition(" ")[2].strip()
    if call.caller.role != "node":
        known = isinstance(token, Token) and bool(given.secret) and same_secret(token, given.secret)
        if token is not None and not known:
            raise Conflict(
                f"there is a node called {name} already, and this is not its credential",
                hint=f"keep the agent's data directory, choose another name, or `mandor delete node {name}`",
                node=name,
            )
        made, credential = make_token("node", f"node:{name}", name=node_token_name(name), secret=given.secret)
        if not known:
            token = made
            writes += [Put(made), audit(call.parts.clock, call.caller, "join", f"node {name}", (), call.address)]
    if not isinstance(node, Node):
        pool = await store.get(Key("node-pool", "", given.pool))
        node = _new_node(name, given, pool)
        writes.append(Put(node))
    elif address and node.status.address != address:
        status = msgspec.structs.replace(node.status, address=address)
        writes.append(Put(node.changed(status=status)))
    if writes:
        await store.commit(*writes)
    _tell(call.parts, call.caller, node, address)
    return Joined(credential, cluster, renew_seconds(call.parts, token) if isinstance(token, Token) else None)


def _new_node(name: str, given: Join, pool: Object | None) -> Node:
    try:
        spec, labels = new_node_spec(pool, name, given.pool)
        return Node(
            meta=Meta(name=name, labels=given.labels | labels),
            spec=spec,
            status=NodeStatus(phase=NodePhase.UNKNOWN, address=given.address),
        )
    except ValueError as error:
        raise Invalid(str(error)) from error


def _tell(parts: ApiParts, caller: Caller, node: Node, address: str) -> None:
    if parts.recorder is not None:
        verb = "is back" if caller.role == "node" else "has joined"
        parts.recorder.note(node, "Joined", f"{node.meta.name} {verb}{f' from {address}' if address else ''}")


async def heartbeat(call: Call[None, Report]) -> ClusterSpec:
    name, caller = call.path["name"], call.caller
    if caller.node != name and not (caller.role == "admin" and not caller.token):
        raise Forbidden(f"{caller.identity} may not beat for {name}")
    if await call.parts.store.get(Key("node", "", name)) is None:
        raise missing(Key("node", "", name))
    cluster = await read_cluster(call.parts.store)
    if call.body.cluster and call.body.cluster != cluster.id:
        raise Conflict(
            f"this is the cluster {cluster.id}, and {name} belongs to {call.body.cluster}",
            hint="point the agent at its own cluster",
            cluster=cluster.id,
        )
    call.parts.heartbeats.beat(name, call.body)
    return cluster


async def usage(call: Call[None, None]) -> UsageReport:
    name = call.path["name"]
    if not call.caller.user and call.caller.role != "component" and call.caller.node != name:
        raise Forbidden(f"{call.caller.identity} may not read the usage of {name}")
    found = call.parts.heartbeats.usage(name)
    if found is not None:
        return found
    if await call.parts.store.get(Key("node", "", name)) is None:
        raise missing(Key("node", "", name))
    others = await _others(call.parts, name)
    raise NotFound(
        f"this server does not hear {name}",
        hint=f"{others[0]} hears it" if others else "the node is silent",
        key=Key("node", "", name),
        servers=others,
    )


async def all_usage(call: Call[None, None]) -> Usages:
    if not call.caller.user and call.caller.role != "component":
        raise Forbidden(f"{call.caller.identity} may not read the usage of other nodes")
    return Usages(call.parts.heartbeats.all_usage(), await _others(call.parts))


async def _others(parts: ApiParts, node: str = "") -> list[str]:
    """The addresses of the other servers that hear nodes (or this one): each knows what its own use."""
    hearings = (await parts.store.list("hearing")).items
    found = []
    for each in hearings:
        own = each.meta.name == parts.heartbeats.server_id
        if own or not isinstance(each, Hearing) or (node and node not in each.spec.nodes):
            continue
        lease = await parts.store.get(Key("lease", "", f"server-{each.meta.name}"))
        if isinstance(lease, Lease):
            found.append(lease.spec.address)
    return found


OPERATIONS = [
    Operation(
        method="POST",
        path="/v1/nodes/{name}/heartbeat",
        name="heartbeat",
        summary="The node lives, and this is what it uses; answers which cluster this is",
        tag="nodes",
        handler=heartbeat,
        body=Report,
        result=ClusterSpec,
        refuses=("not_found", "conflict"),
        lane=Lane.HEARTBEAT,
        prompt=True,
    ),
    Operation(
        method="POST",
        path="/v1/nodes/{name}/join",
        name="join",
        summary="Become a node: by a join token, or again with the node's own credential",
        tag="nodes",
        handler=join,
        body=Join,
        body_optional=True,
        result=Joined,
        refuses=("conflict",),
    ),
    Operation(
        method="GET",
        path="/v1/nodes/{name}/usage",
        name="get_usage",
        summary="What the node uses now",
        tag="nodes",
        handler=usage,
        result=UsageReport,
        refuses=("not_found",),
    ),
    Operation(
        method="GET",
        path="/v1/usage",
        name="list_usage",
        summary="What the nodes use that this server hears",
        tag="nodes",
        handler=all_usage,
        result=Usages,
        lane=Lane.BULK,
    ),
]
