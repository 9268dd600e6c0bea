"""Who may read what: users by namespace, a node only what concerns it, components everything."""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from mandor.api.caller import Caller
from mandor.api.secret import blanked
from mandor.errors import Forbidden, NotFound
from mandor.model.beyond import beyond_of, widened
from mandor.model.codec import KINDS
from mandor.model.instance import Instance
from mandor.model.log_sink import LogSink
from mandor.model.meta import Key, Object
from mandor.model.record import Session, Token
from mandor.model.secret import Secret
from mandor.model.workload import Release
from mandor.store.base import ALL, Filter, Store

GUARDED = frozenset({"token", "audit", "session"})
"""Of the users only an admin of the whole cluster sees these."""
OF_A_NODE = frozenset({"node", "instance", "session", "event", "volume"})
"""These belong to a node, and the store can tell to which."""

Shows = Callable[[Object], bool]


@dataclass(frozen=True, slots=True)
class Sight:
    """What a caller sees of a kind: `where` for the store, and what it cannot select by itself."""

    where: Filter
    shows: Shows | None = None
    """None: all that the store gives."""
    still: Callable[[], Awaitable[None]] | None = None
    """Raises `Forbidden` when the caller may see it no longer: a watch asks now and then. None: always."""


async def sight(
    store: Store, caller: Caller, kind: str | None, where: Filter, *, live: bool = False, wide: bool = False
) -> Sight:
    """Raise `Forbidden` if the caller may see nothing of this at all; `live`: for a watch; `wide`: a node that asks for
    the instances of a namespace means those of others, too."""
    if caller.role == "component":
        return Sight(where)
    if caller.role == "node":
        near = await _neighbours(store, caller, where) if wide and kind == "instance" else None
        return near or await _sight_of_node(store, caller, kind, where, live=live)
    if not caller.user:
        raise Forbidden(f"{caller.identity} ({caller.role}) may only join")
    if where.namespace and not caller.sees(where.namespace):
        raise Forbidden(f"{caller.identity} has no say in the namespace {where.namespace}")
    if kind in GUARDED:
        caller.require("admin", what=f"read {KINDS[kind].plural}")
    if caller.everywhere and (caller.role == "admin" or kind is not None):
        return Sight(where)
    return Sight(where, lambda value: may_show(caller, value))


def may_show(caller: Caller, value: Object) -> bool:
    """Whether a user sees this object in a list of several kinds or namespaces."""
    if value.kind in GUARDED and not (caller.role == "admin" and caller.everywhere):
        return False
    if value.kind == "namespace":
        return caller.sees(value.meta.name)
    return not value.meta.namespace or caller.sees(value.meta.namespace)


async def _sight_of_node(store: Store, caller: Caller, kind: str | None, where: Filter, *, live: bool) -> Sight:
    if where.node not in {None, caller.node}:
        raise Forbidden(f"{caller.identity} may not look at the node {where.node}")
    if kind in OF_A_NODE or (kind is None and where.kinds and where.kinds <= OF_A_NODE):
        return Sight(Filter(where.namespace, caller.node, where.labels, where.kinds))
    if kind in {"cluster", "log-sink"} or (kind == "priority-class" and not live):
        return Sight(where)
    if kind in {"workload", "release"} and not live:
        return Sight(where, await _of_instances(store, caller.node, kind))
    if kind == "secret" and not live:
        return Sight(where, await _named_by_instances(store, caller.node))
    raise Forbidden(
        f"{caller.identity} may not {'watch' if live else 'list'} {KINDS[kind].plural if kind else 'everything'}",
        hint="a node sees itself, its instances, volumes and sessions, priority classes, log sinks, and by name the "
        "workloads, releases and secrets of its instances, and the secrets of log sinks",
    )


async def _neighbours(store: Store, caller: Caller, where: Filter) -> Sight | None:
    """The instances of a namespace that can be reached from elsewhere, for a node that has one of it. None: it has
    none, or did not ask for them."""
    if where.namespace is None or where.node is not None:
        return None
    mine = Filter(where.namespace, caller.node)

    async def still() -> None:
        if not (await store.list("instance", mine)).items:
            raise Forbidden(f"{caller.identity} has no instance in the namespace {where.namespace} any more")

    try:
        await still()
    except Forbidden:
        return None
    return Sight(where, lambda value: value.node == caller.node or _reachable(value), still)


def _reachable(value: Object) -> bool:
    return isinstance(value, Instance) and bool(value.status.ports)


async def _of_instances(store: Store, node: str, kind: str) -> Shows:
    found = await store.list("instance", Filter(node=node))
    held = [each for each in found.items if isinstance(each, Instance)]
    names = {(each.meta.namespace, each.spec.workload if kind == "workload" else each.spec.release) for each in held}
    return lambda value: (value.meta.namespace, value.meta.name) in names


async def _named_by_instances(store: Store, node: str) -> Shows:
    """The secrets that its instances name, and those of log sinks, which every node has to know."""
    found = await store.list("instance", Filter(node=node))
    sinks = (await store.list(LogSink.kind)).items
    names = {(each.spec.secret_namespace, name) for each in sinks for name in each.spec.secrets}
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
    """One object, with what the caller may not know blanked; `NotFound` or `Forbidden`. A secret that a node may have
    is as it is stored."""
    return await _read(store, caller, key, await _sight_of(store, caller, key))


async def read_all(store: Store, caller: Caller, keys: Iterable[Key]) -> list[Object]:
    """Those of them that there are, each as `read` shows it; `Forbidden` if one may not be read."""
    sights: dict[tuple[str, str], Sight] = {}
    found = []
    for key in keys:
        seen = sights.get(key[:2])
        if seen is None:
            seen = sights[key[:2]] = await _sight_of(store, caller, key)
        with suppress(NotFound):
            found.append(await _read(store, caller, key, seen))
    return found


async def _sight_of(store: Store, caller: Caller, key: Key) -> Sight:
    """The same for all keys of its kind and namespace."""
    return await sight(store, caller, key.kind, Filter(namespace=key.namespace) if key.namespace else ALL)


async def _read(store: Store, caller: Caller, key: Key, seen: Sight) -> Object:
    found = await store.get(key)
    if found is None:
        raise missing(key)
    if not seen.where.matches(found):
        raise Forbidden(f"{caller.identity} may not read {key}")
    if seen.shows is not None and not seen.shows(found):
        raise missing(key)
    return found if isinstance(found, Secret) and caller.role == "node" else redacted(found, caller)


def missing(key: Key) -> NotFound:
    where = f" in the namespace {key.namespace}" if key.namespace else ""
    return NotFound(
        f"there is no {key.kind} called {key.name}{where}",
        hint=f"`mandor get {KINDS[key.kind].plural}` shows them all",
        key=key,
    )


def redacted(value: Object, caller: Caller) -> Object:
    """Without its secrets: nobody reads the hash of a token or what is sealed, and only the node the secret of a
    session."""
    if isinstance(value, Token):
        former = value.spec.former
        blank = msgspec.structs.replace(former, hash="") if former is not None else None
        return _bare(value.changed(spec=msgspec.structs.replace(value.spec, hash="", former=blank)))
    if isinstance(value, Session) and caller.node != value.spec.node:
        return _bare(value.changed(spec=msgspec.structs.replace(value.spec, secret="")))
    return _bare(blanked(value)) if isinstance(value, Secret) else value


def _bare(value: Object) -> Object:
    """What a newer version says in it may be a secret, too."""
    return value.changed(meta=widened(value.meta, None)) if beyond_of(value.meta) else value


SECRETIVE = frozenset({"token", "session", "secret", None})
"""Kinds (None: all) where `redacted` may change something."""
