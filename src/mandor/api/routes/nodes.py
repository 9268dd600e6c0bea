"""Nodes: join, heartbeats and usage."""

from contextlib import nullcontext
from typing import Annotated

import msgspec
from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.access import missing
from mandor.api.applied import AppliedAnswer, AppliedReport
from mandor.api.auth import BY_KEY, make_token, node_token_name, same_secret
from mandor.api.caller import Caller
from mandor.api.changes import FieldChange
from mandor.api.cluster import read_cluster
from mandor.api.enrolment import bound, certificate_for, may_issue
from mandor.api.gate import Gate
from mandor.api.heartbeat import Report, UsageReport
from mandor.api.http.fair_queue import Lane
from mandor.api.http.request import header
from mandor.api.joining import NO_TERMS, Admitted, admit, check_known, lasting, used_once
from mandor.api.operation import Call, Operation
from mandor.api.parts import ApiParts
from mandor.api.pools import new_node_spec
from mandor.api.renewal import certificate_seconds, renew_seconds
from mandor.api.versions import check_skew
from mandor.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from mandor.lib.x509 import REQUEST_BYTES_MOST
from mandor.model.meta import Key, Meta, Object, check_name
from mandor.model.node import Node, NodePhase, NodeStatus
from mandor.model.record import ClusterSpec, HeartbeatSummary, Lease, Token
from mandor.store.base import Put, Write

TRIES = 10


class Join(Struct, frozen=True, forbid_unknown_fields=True):
    address: Annotated[str, Note(description="Address of the node; may change.", max_length=253)] = ""
    pool: Annotated[
        str, Note(description="Pool of a new node; empty: that of the join token, or `default`.", max_length=63)
    ] = ""
    labels: Annotated[dict[str, str], Note(description="Labels of a new node; users change them later.")] = {}
    csr: Annotated[
        str,
        Note(
            description="Certificate signing request (PEM) for the node's key; empty: no certificate.",
            max_length=REQUEST_BYTES_MOST,
        ),
    ] = ""
    secret: Annotated[
        str,
        Note(
            description="Secret of the credential, chosen by the agent so that it can repeat the request.",
            pattern="^([0-9a-f]{64})?$",
        ),
    ] = ""


class Joined(Struct, frozen=True):
    credential: str
    """The node's own token; returned only once."""
    cluster: ClusterSpec
    renew_seconds: float | None = None
    """Seconds until the agent renews the credential; absent: only on request."""
    certificate: str = ""
    """Client certificate of the node (PEM), used instead of the credential; empty: none was issued."""
    ca: str = ""
    """Authorities of the servers' certificates (PEM); empty: the cluster's authority does not issue them."""
    certificate_seconds: float | None = None
    """Seconds until the agent requests the next certificate."""


class Usages(Struct, frozen=True):
    items: list[UsageReport]
    servers: list[str]
    """Addresses of other servers, which receive the heartbeats of other nodes."""


async def join(call: Call[None, Join | None]) -> Joined:
    """Register a node. The name is its identity: a known name needs its credential, regardless of the address."""
    name, caller = call.path["name"], call.caller
    try:
        check_name(name, "node name")
    except ValueError as error:
        raise Invalid(str(error), path="name") from error
    if caller.user and not caller.may("join", "node", name=name):
        raise Forbidden(
            f"{caller.identity} ({caller.role}) may not join nodes",
            hint="create a join token: `mandor token create NAME --role join`",
        )
    if caller.role == "node" and caller.node != name:
        raise Forbidden(f"{caller.identity} may not join as {name}")
    check_skew(call.headers)  # only when joining: a node that has joined is not refused because of its version
    # The uses of a join token are counted in one object: agents that start together join one after another.
    async with call.parts.joining if await _counted(call) else nullcontext():
        for attempt in range(TRIES):
            try:
                return await _join(call, name, call.body or Join())
            except Conflict as error:
                # A conflict with a key is that of another writer; without one it is raised by `_join`.
                if "key" not in error.facts or attempt == TRIES - 1:
                    raise
    raise AssertionError("unreachable")


async def _join(call: Call[None, Join | None], name: str, given: Join) -> Joined:
    store, address = call.parts.store, given.address
    node = await store.get(Key("node", "", name))
    token = await store.get(Key("token", "", node_token_name(name)))
    cluster = await read_cluster(store)
    writes: list[Write] = []
    terms = token.spec.join or NO_TERMS if isinstance(token, Token) else NO_TERMS
    request = certificate_for(call, given.csr) if given.csr and may_issue(call) else None
    key = request.key if request is not None else ""
    credential = (header(call.headers, b"authorization") or "").partition(" ")[2].strip()
    recorded = False
    if call.caller.role != "node":
        known = isinstance(token, Token) and bool(given.secret) and same_secret(token, given.secret)
        if token is not None and not known:
            raise Conflict(
                f"a node named {name} already exists, and this is not its credential",
                hint=f"restore the agent's data directory, choose another name, or run `mandor delete node {name}`",
                node=name,
            )
        shown = await _join_token(call) if not known else None
        terms = (shown.spec.join if shown is not None else None) or terms
        made, credential = make_token(
            "node", f"node:{name}", name=node_token_name(name), secret=given.secret, join=lasting(terms)
        )
        if isinstance(token, Token):
            token, writes = _with_key(call, token, key, current=True)
        if not known:
            token = made.changed(spec=msgspec.structs.replace(made.spec, key=key))
            check_known(terms, name, node.spec.pool if isinstance(node, Node) else "")
            if shown is not None and (used := used_once(shown)) is not shown:
                writes.append(Put(used))
            writes.append(Put(token))
            recorded = True
    elif isinstance(token, Token):
        token, writes = _with_key(call, token, key, current=call.caller.proof == token.spec.hash)
    if not isinstance(node, Node):
        admitted = admit(terms, name, given.pool, given.labels)
        pool = await store.get(Key("node-pool", "", admitted.pool))
        node = _new_node(name, given.address, admitted, pool)
        writes.append(Put(node))
        recorded = True
    elif address and node.status.address != address:
        status = msgspec.structs.replace(node.status, address=address)
        writes.append(Put(node.changed(status=status)))
    if recorded:
        facts = {"address": given.address, "pool": node.spec.pool, "labels": dict(node.meta.labels) or None}
        changes = [FieldChange(path=path, after=value) for path, value in facts.items() if value]
        writes.append(call.parts.auditor.record(call.caller, "join", f"node {name}", call.address, changes))
    if writes:
        await store.commit(*writes)
    _record_join(call.parts, call.caller, node, address)
    renew = renew_seconds(call.parts, token) if isinstance(token, Token) else None
    authority = call.parts.authority
    if request is None or authority is None:
        return Joined(credential, cluster, renew)
    ca = authority.bundle if authority.serves else ""
    certificate = authority.for_node(name, request.public)
    return Joined(credential, cluster, renew, certificate, ca, certificate_seconds(authority.node_seconds))


def _with_key(call: Call[None, Join | None], token: Token, key: str, *, current: bool) -> tuple[Token, list[Write]]:
    """Return the node's credential bound to this key, and the writes for it."""
    if not key:
        if token.spec.key and call.secure and not call.caller.proof.startswith(BY_KEY):
            raise Unauthenticated(
                f"{token.spec.identity} has to authenticate with its certificate; its secret alone is not enough"
            )
        return token, []
    found, changed = bound(token, key, call.parts.clock.now(), current=current)
    if not changed:
        return token, []
    record = call.parts.auditor.of_commit(call.caller, "certify", call.address, [(Put(found), token)])
    return found, [Put(found), *record]


async def _counted(call: Call[None, Join | None]) -> bool:
    shown = await _join_token(call)
    return shown is not None and shown.spec.join is not None and shown.spec.join.uses is not None


async def _join_token(call: Call[None, Join | None]) -> Token | None:
    """Return the caller's join token as it is stored now; None: the caller joins with another right."""
    if call.caller.role != "join":
        return None
    found = await call.parts.store.get(Key("token", "", call.caller.token))
    if not isinstance(found, Token):
        raise Unauthenticated("the join token was revoked")
    return found


def _new_node(name: str, address: str, admitted: Admitted, pool: Object | None) -> Node:
    try:
        spec, labels = new_node_spec(pool, name, admitted.pool)
        return Node(
            meta=Meta(name=name, labels={**admitted.labels, **labels}),
            spec=spec,
            status=NodeStatus(phase=NodePhase.UNKNOWN, address=address),
        )
    except ValueError as error:
        raise Invalid(str(error)) from error


def _record_join(parts: ApiParts, caller: Caller, node: Node, address: str) -> None:
    if parts.recorder is not None:
        verb = "is back" if caller.role == "node" else "has joined"
        parts.recorder.note(node, "Joined", f"{node.meta.name} {verb}{f' from {address}' if address else ''}")


async def heartbeat(call: Call[None, Report]) -> ClusterSpec:
    name, caller = call.path["name"], call.caller
    if caller.node != name and not (caller.role == "admin" and not caller.token):
        raise Forbidden(f"{caller.identity} may not send heartbeats of {name}")
    if await call.parts.store.get(Key("node", "", name)) is None:
        raise missing(Key("node", "", name))
    cluster = await read_cluster(call.parts.store)
    if call.body.cluster and call.body.cluster != cluster.id:
        raise Conflict(
            f"this is the cluster {cluster.id}, but {name} belongs to {call.body.cluster}",
            hint="configure the agent with a server of its own cluster",
            cluster=cluster.id,
        )
    call.parts.heartbeats.beat(name, call.body)
    return cluster


async def applied(call: Call[None, AppliedReport]) -> AppliedAnswer:
    """Take what the data path of a node has applied; return what those of all nodes have."""
    name, caller = call.path["name"], call.caller
    if caller.node != name:
        raise Forbidden(f"{caller.identity} may not report the data path of {name}")
    return await call.parts.heartbeats.applied(name, call.body)


async def usage(call: Call[None, None]) -> UsageReport:
    name = call.path["name"]
    if call.caller.user:
        call.caller.require("get", "node", name=name, what=f"read the usage of {name}")
    elif call.caller.role != "component" and call.caller.node != name:
        raise Forbidden(f"{call.caller.identity} may not read the usage of {name}")
    found = call.parts.heartbeats.usage(name)
    if found is not None:
        return _narrowed(found, call.caller)
    if await call.parts.store.get(Key("node", "", name)) is None:
        raise missing(Key("node", "", name))
    others = await _others(call.parts, name)
    raise NotFound(
        f"this server receives no heartbeats of {name}",
        hint=f"{others[0]} receives them" if others else "no server receives heartbeats of the node",
        key=Key("node", "", name),
        servers=others,
    )


async def all_usage(call: Call[None, None]) -> Usages:
    if call.caller.role != "component":
        call.caller.require("list", "node", what="read the usage of other nodes")
    reports = [_narrowed(each, call.caller) for each in call.parts.heartbeats.all_usage()]
    return Usages(reports, await _others(call.parts))


def _narrowed(report: UsageReport, caller: Caller) -> UsageReport:
    """Return the report with the instances of the caller's namespaces only."""
    if not caller.user or caller.everywhere:
        return report
    seen = {name: used for name, used in report.instances.items() if caller.sees(name.partition("/")[0])}
    return msgspec.structs.replace(report, instances=seen)


async def _others(parts: ApiParts, node: str = "") -> list[str]:
    """Return the addresses of the other servers that receive heartbeats, of one node if given."""
    summaries = (await parts.store.list("hearing")).items
    found = []
    for each in summaries:
        own = each.meta.name == parts.heartbeats.server_id
        if own or not isinstance(each, HeartbeatSummary) or (node and node not in each.spec.nodes):
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
        summary="Report that a node is alive, with its usage; returns the id of the cluster",
        tag="nodes",
        gate=Gate(frozenset({"node"}), ("join",), "node"),
        handler=heartbeat,
        body=Report,
        result=ClusterSpec,
        refuses=("not_found", "conflict"),
        lane=Lane.HEARTBEAT,
        prompt=True,
    ),
    Operation(
        method="POST",
        path="/v1/nodes/{name}/applied",
        name="report_applied",
        summary="Report the revision of services that the data path of a node has applied; returns that of all nodes",
        tag="nodes",
        gate=Gate(frozenset({"node"}), users=False),
        handler=applied,
        body=AppliedReport,
        result=AppliedAnswer,
        lane=Lane.HEARTBEAT,
    ),
    Operation(
        method="POST",
        path="/v1/nodes/{name}/join",
        name="join",
        summary="Register a node with a join token, or again with its own credential",
        tag="nodes",
        gate=Gate(frozenset({"join", "node", "component"}), ("join",), "node"),
        handler=join,
        body=Join,
        body_optional=True,
        result=Joined,
        refuses=("conflict",),
        enrols=True,
    ),
    Operation(
        method="GET",
        path="/v1/nodes/{name}/usage",
        name="get_usage",
        summary="Read the current usage of a node",
        tag="nodes",
        handler=usage,
        result=UsageReport,
        refuses=("not_found",),
    ),
    Operation(
        method="GET",
        path="/v1/usage",
        name="list_usage",
        summary="List the usage of the nodes that send heartbeats to this server",
        tag="nodes",
        gate=Gate(frozenset({"component"}), ("list",), "node"),
        handler=all_usage,
        result=Usages,
        lane=Lane.BULK,
    ),
]
