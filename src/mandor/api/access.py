"""Read access: users by their rules, a node its own objects, components everything."""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from mandor.api.caller import Caller, lacks
from mandor.api.rights import about, allowed_on, without_limit
from mandor.api.secret import blanked
from mandor.errors import Forbidden, NotFound
from mandor.model.acme_account import AcmeAccount
from mandor.model.authority import Authority
from mandor.model.codec import KINDS
from mandor.model.decision import DecisionRecord
from mandor.model.instance import Instance
from mandor.model.log_sink import LogSink
from mandor.model.meta import Key, Object
from mandor.model.network import Network
from mandor.model.node import Node
from mandor.model.pool import NodePool
from mandor.model.rebalance import Rebalance
from mandor.model.record import Cluster, Event, Namespace, Session, Token
from mandor.model.role import IdentityKey
from mandor.model.secret import Secret
from mandor.model.service import Service
from mandor.model.unknown_fields import unknown_fields_of, with_unknown_fields
from mandor.model.workload import Release
from mandor.store.base import ALL, Filter, Store

OF_A_NODE = frozenset({"node", "instance", "session", "event", "volume"})
"""Kinds that belong to a node, so that the store can select them by node."""

Shows = Callable[[Object], bool]


@dataclass(frozen=True, slots=True)
class ReadScope:
    """The objects of a kind that a caller may read: a filter of the store, and a predicate for the rest."""

    where: Filter
    shows: Shows | None = None
    """Whether an object of the filter is readable; None: all are."""
    recheck: Callable[[], Awaitable[None]] | None = None
    """Raises `Forbidden` once the caller may not read it any more; a watch calls it now and then. None: never."""


async def read_scope(
    store: Store,
    caller: Caller,
    kind: str | None,
    where: Filter,
    *,
    live: bool = False,
    wide: bool = False,
    verb: str = "",
) -> ReadScope:
    """Return the objects that the caller may read; raise `Forbidden` if there can be none.

    `live`: for a watch. `wide`: a node may read instances of other nodes in a namespace. `verb`: the verb that is
    needed, if neither `list` nor `watch`.
    """
    if caller.role == "component":
        return ReadScope(where)
    if caller.role == "node":
        near = await _neighbours(store, caller, where) if wide and _of_neighbours(kind, where) else None
        return near or await _scope_of_node(store, caller, kind, where, live=live)
    if not caller.user:
        raise Forbidden(f"{caller.identity} ({caller.role}) may only join")
    return _scope_by_rules(caller, verb or ("watch" if live else "list"), kind, where)


def _scope_by_rules(caller: Caller, verb: str, kind: str | None, where: Filter) -> ReadScope:
    """Return the scope of a list or a watch: only objects that `get` would return, too."""
    if kind is None:
        return ReadScope(where, lambda value: may_show(caller, value, verb))
    there = where.namespace or None
    rules = about(caller.held, verb, kind, there)
    reads = rules if verb == "get" else about(caller.held, "get", kind, there)
    if not rules or not reads:
        place = f" in the namespace {there}" if there else ""
        raise Forbidden(
            f"{caller.identity} ({caller.role}) may not {verb} {KINDS[kind].plural}{place}",
            hint=lacks(verb if not rules else "get", kind),
            role=caller.role,
        )
    if without_limit(rules) and without_limit(reads):
        return ReadScope(where)
    return ReadScope(
        where,
        lambda value: (
            allowed_on(rules, verb, value) and allowed_on(reads, "get", value) and _shows_event(caller, value)
        ),
    )


def _shows_event(caller: Caller, value: Object) -> bool:
    """Return False for an event about a cluster-wide object, such as a node, if the caller is limited to namespaces:
    its message may mention any namespace."""
    if not isinstance(value, Event) or caller.everywhere:
        return True
    return value.spec.about.partition(" ")[2].startswith(f"{value.meta.namespace}/")


def may_show(caller: Caller, value: Object, verb: str = "list") -> bool:
    """Return whether the rules of a caller show this object in a list of several kinds or namespaces."""
    seen = allowed_on(caller.held, verb, value) and allowed_on(caller.held, "get", value)
    return seen and _shows_event(caller, value)


async def _scope_of_node(store: Store, caller: Caller, kind: str | None, where: Filter, *, live: bool) -> ReadScope:
    if where.node not in {None, caller.node}:
        raise Forbidden(f"{caller.identity} may not read objects of the node {where.node}")
    if kind in OF_A_NODE or (kind is None and where.kinds and where.kinds <= OF_A_NODE):
        return ReadScope(Filter(where.namespace, caller.node, where.labels, where.kinds))
    if kind in {"cluster", "log-sink"} or (kind == "priority-class" and not live):
        return ReadScope(where)
    if kind == Network.kind:
        return ReadScope(where, lambda value: isinstance(value, Network) and caller.node in value.status.slices)
    if kind in {"workload", "release"} and not live:
        return ReadScope(where, await _of_instances(store, caller.node, kind))
    if kind == "namespace" and not live:
        return ReadScope(where, await _with_instances(store, caller.node))
    if kind == "secret" and not live:
        return ReadScope(where, await _named_by_instances(store, caller.node))
    raise Forbidden(
        f"{caller.identity} may not {'watch' if live else 'list'} {KINDS[kind].plural if kind else 'everything'}",
        hint="a node may read itself, its instances, volumes and sessions, its networks, priority classes and log "
        "sinks, and by name the namespaces, workloads, releases and secrets of its instances, and the secrets of "
        "log sinks",
    )


def _of_neighbours(kind: str | None, where: Filter) -> bool:
    """Return whether a request is about instances and services, which a node may read of namespaces in use there."""
    kinds = frozenset({kind}) if kind is not None else where.kinds
    return bool(kinds) and kinds <= {Instance.kind, Service.kind}


async def _neighbours(store: Store, caller: Caller, where: Filter) -> ReadScope | None:
    """Return the scope of the services of a namespace and its instances with ports, for a node with an instance there.

    None: the node has no instance there, or did not ask for a namespace.
    """
    if where.namespace is None or where.node is not None:
        return None
    mine = Filter(where.namespace, caller.node)

    async def recheck() -> None:
        if not (await store.list("instance", mine)).items:
            raise Forbidden(f"{caller.identity} no longer has an instance in the namespace {where.namespace}")

    try:
        await recheck()
    except Forbidden:
        return None
    return ReadScope(where, lambda value: value.node == caller.node or _is_reachable(value), recheck)


def _is_reachable(value: Object) -> bool:
    if isinstance(value, Instance):
        return bool(value.status.ports or value.status.network)
    return isinstance(value, Service)


async def _with_instances(store: Store, node: str) -> Shows:
    """Return a predicate for the namespaces where the node has an instance."""
    names = {each.meta.namespace for each in (await store.list("instance", Filter(node=node))).items}
    return lambda value: value.meta.name in names


async def _of_instances(store: Store, node: str, kind: str) -> Shows:
    found = await store.list("instance", Filter(node=node))
    held = [each for each in found.items if isinstance(each, Instance)]
    names = {(each.meta.namespace, each.spec.workload if kind == "workload" else each.spec.release) for each in held}
    return lambda value: (value.meta.namespace, value.meta.name) in names


async def _named_by_instances(store: Store, node: str) -> Shows:
    """Return a predicate for the secrets that the node's instances refer to, and those of log sinks."""
    found = await store.list("instance", Filter(node=node))
    sinks = (await store.list(LogSink.kind)).items
    names = {(each.spec.secret_namespace, name) for each in sinks for name in each.spec.secrets}
    for name in {each.meta.namespace for each in found.items if isinstance(each, Instance) and not each.phase.over}:
        space = await store.get(Key(Namespace.kind, "", name))
        if isinstance(space, Namespace) and space.spec.pull_secret:
            names.add((name, space.spec.pull_secret))
    for key in {
        (each.meta.namespace, each.spec.release, each.spec.group)
        for each in found.items
        if isinstance(each, Instance) and not each.phase.over
    }:
        release = await store.get(Key("release", *key[:2]))
        if isinstance(release, Release) and key[2] in release.spec.groups:
            names |= {(key[0], each) for form in release.spec.groups[key[2]].forms for each in form.secrets}
    return lambda value: (value.meta.namespace, value.meta.name) in names


async def read(store: Store, caller: Caller, key: Key) -> Object:
    """Return one object without its secret values; raise `NotFound` or `Forbidden`.

    A secret that a node needs is returned sealed, as it is stored.
    """
    return await _read(store, caller, key, await _scope_of(store, caller, key))


async def read_all(store: Store, caller: Caller, keys: Iterable[Key]) -> list[Object]:
    """Return the objects that exist, each as `read` returns it; raise `Forbidden` if one may not be read."""
    scopes: dict[tuple[str, str], ReadScope] = {}
    found = []
    for key in keys:
        seen = scopes.get(key[:2])
        if seen is None:
            seen = scopes[key[:2]] = await _scope_of(store, caller, key)
        with suppress(NotFound):
            found.append(await _read(store, caller, key, seen))
    return found


async def _scope_of(store: Store, caller: Caller, key: Key) -> ReadScope:
    """Return the scope of one key, which is the same for all keys of its kind and namespace."""
    where = Filter(namespace=key.namespace) if key.namespace else ALL
    return await read_scope(store, caller, key.kind, where, verb="get")


async def _read(store: Store, caller: Caller, key: Key, seen: ReadScope) -> Object:
    found = await store.get(key)
    if found is None:
        raise missing(key)
    # An object that the caller may not read is answered as one that does not exist.
    if not seen.where.matches(found):
        raise missing(key)
    if seen.shows is not None and not seen.shows(found):
        raise missing(key)
    return found if isinstance(found, Secret) and caller.role == "node" else redacted(found, caller)


def missing(key: Key) -> NotFound:
    where = f" in the namespace {key.namespace}" if key.namespace else ""
    return NotFound(
        f"there is no {key.kind} called {key.name}{where}",
        hint=f"`mandor get {KINDS[key.kind].plural}` lists them",
        key=key,
    )


def redacted(value: Object, caller: Caller) -> Object:
    """Return the object without secret values: hashes of tokens, sealed values, secrets of other nodes' sessions."""
    if isinstance(value, Token):
        former = value.spec.former
        blank = msgspec.structs.replace(former, hash="") if former is not None else None
        return _bare(value.changed(spec=msgspec.structs.replace(value.spec, hash="", former=blank)))
    if isinstance(value, Authority):
        bare = tuple(msgspec.structs.replace(each, key="") for each in value.spec.certificates)
        return _bare(value.changed(spec=msgspec.structs.replace(value.spec, certificates=bare)))
    if isinstance(value, Session) and caller.node != value.spec.node:
        return _bare(value.changed(spec=msgspec.structs.replace(value.spec, secret="")))
    if isinstance(value, IdentityKey | AcmeAccount):
        return _bare(value.changed(spec=msgspec.structs.replace(value.spec, sealed="")))
    if isinstance(value, Cluster) and value.status.keys:
        keys = tuple(msgspec.structs.replace(each, sealed="") for each in value.status.keys)
        return _bare(value.changed(status=msgspec.structs.replace(value.status, keys=keys)))
    if isinstance(value, Secret):
        return _bare(blanked(value))
    return narrowed(value, caller) if caller.user and not caller.everywhere else value


def narrowed(value: Object, caller: Caller) -> Object:
    """Return a cluster-wide object or a decision without its details about namespaces that the caller may not read."""
    replace = msgspec.structs.replace
    if isinstance(value, Node):
        status = value.status
        drain = replace(status.drain, waiting=()) if status.drain is not None else None
        return value.changed(status=replace(status, images={}, log_sinks={}, drain=drain))
    if isinstance(value, Rebalance):
        moves = tuple(each for each in value.status.moves if caller.sees(each.namespace))
        return value.changed(status=replace(value.status, moves=moves, message=""))
    if isinstance(value, NodePool) and value.spec.autoscale is not None:
        return value.changed(spec=replace(value.spec, autoscale=replace(value.spec.autoscale, settings={})))
    if isinstance(value, DecisionRecord):
        victims = tuple(each for each in value.spec.victims if caller.sees(each.rpartition("/")[0]))
        return value.changed(spec=replace(value.spec, victims=victims))
    return value


def _bare(value: Object) -> Object:
    """Return the object without fields that this version does not know: they may be secret."""
    return value.changed(meta=with_unknown_fields(value.meta, None)) if unknown_fields_of(value.meta) else value


SECRETIVE = frozenset({"token", "session", "secret", "cluster", "identity-key", "authority", None})
"""Kinds with secret values that `redacted` removes; None stands for a request about all kinds."""
