"""List, get, put, patch and delete, for every kind."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import Meta as Note

from mandor.api.access import missing, read, read_all, read_scope, redacted
from mandor.api.auth import node_token_name
from mandor.api.counts import keep_counts, scaled_counts
from mandor.api.gate import WRITERS
from mandor.api.http.fair_queue import Lane
from mandor.api.http.problems import misfit
from mandor.api.labels import select_for
from mandor.api.operation import JSON, MERGE_PATCH, Call, Operation
from mandor.api.routes.queries import ListQuery, NameQuery, VersionQuery
from mandor.api.secret import opened
from mandor.api.selector import parse_selector
from mandor.api.writers import check_reach
from mandor.api.writing import Author, commit_as, moved
from mandor.errors import Conflict, Invalid
from mandor.lib.words import did_you_mean
from mandor.model.codec import KINDS, from_plain, to_plain
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta, Object
from mandor.model.node import Node, stamped
from mandor.model.secret import Secret
from mandor.model.unknown_fields import unknown_fields_of
from mandor.model.workload import Workload
from mandor.store.base import ALL, Delete, Filter, Put, Write

CHUNK = 500
"""Objects that are processed before other tasks of the event loop run."""
TRIES = 5
"""Attempts of a read-change-write cycle that conflicts with other writers."""

WRITABLE = (
    *("workload", "node", "namespace", "priority-class", "quota", "limit-defaults", "volume", "node-pool"),
    *(
        "rebalance",
        "reservation",
        "service",
        "route",
        "network",
        "secret",
        "webhook",
        "event-bus",
        "log-sink",
        "role",
        "role-binding",
        "issuer",
    ),
)
"""Kinds that users put and patch."""
DELETABLE = (*WRITABLE, "instance", "token")


class Page(msgspec.Struct, frozen=True, omit_defaults=True):
    items: Sequence[Any]
    revision: int
    after: str = ""
    """Position of the next page, for the parameter `after`; absent: this is the last page."""


def key_of(kind: type[Object], name: str, namespace: str) -> Key:
    return Key(kind.kind, namespace if kind.namespaced else "", name)


def page_of(kind: type[Object]) -> type:
    """Return the type of a page of one kind, for the OpenAPI document."""
    return msgspec.defstruct(
        f"{kind.__name__}Page",
        [("items", list[kind]), ("revision", int), ("after", str, "")],  # type: ignore[valid-type]
        frozen=True,
        omit_defaults=True,
    )


# Reading.


async def list_kind(call: Call[ListQuery, None], kind: type[Object]) -> Page:
    query, store = call.query, call.parts.store
    selector = parse_selector(query.labels)
    where = ALL if query.namespace is None and query.node is None else Filter(query.namespace, query.node)
    seen = await read_scope(store, call.caller, kind.kind, where)
    listing = await store.list(kind.kind, seen.where)
    select = await select_for(store, kind.kind, where, selector)
    start = _position(query.after)
    items: list[Object] = []
    after = ""
    for seen_so_far, value in enumerate(_from(listing.items, start), 1):
        if seen_so_far % CHUNK == 0:
            await asyncio.sleep(0)
        if (seen.shows is not None and not seen.shows(value)) or not select.matches(value):
            continue
        if len(items) == min(query.limit, call.parts.settings.list_most):
            last = items[-1].meta
            after = f"{last.namespace}/{last.name}"
            break
        items.append(redacted(value, call.caller))
    return Page(items, listing.revision, after)


def _position(after: str) -> tuple[str, str] | None:
    if not after:
        return None
    namespace, slash, name = after.partition("/")
    if not slash:
        raise Invalid(
            f"{after!r} is not a position in a list", hint="use the `after` of the previous page", parameter="after"
        )
    return namespace, name


def _from(items: Sequence[Object], start: tuple[str, str] | None) -> Sequence[Object]:
    """Return the items after a position; items are ordered by key."""
    if start is None:
        return items
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        meta = items[middle].meta
        if (meta.namespace, meta.name) <= start:
            low = middle + 1
        else:
            high = middle
    return items[low:]


async def get(call: Call[NameQuery, None], kind: type[Object]) -> Object:
    found = await read(call.parts.store, call.caller, key_of(kind, call.path["name"], call.query.namespace))
    return _shown(call, found)


def _shown(call: Call[Any, Any], found: Object) -> Object:
    """Return the object, for a node with the values of its secrets."""
    if isinstance(found, Secret) and call.caller.role == "node":
        return opened(call.parts.sealer, found)
    return found


class KeysQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: Annotated[
        tuple[Annotated[str, Note(max_length=340)], ...],
        Note(description="`kind/namespace/name`, or `kind//name`; may be given several times.", min_length=1),
    ]


class Found(msgspec.Struct, frozen=True):
    items: list[Any]


async def get_several(call: Call[KeysQuery, None]) -> Found:
    """Return several objects at once, for agents that receive several orders at once."""
    found = await read_all(call.parts.store, call.caller, [_key_from(each) for each in call.query.key])
    return Found([_shown(call, each) for each in found])


def _key_from(text: str) -> Key:
    kind, _, rest = text.partition("/")
    namespace, slash, name = rest.partition("/")
    if kind not in KINDS:
        raise Invalid(f"there is no kind {kind!r}", hint=did_you_mean(kind, KINDS), parameter="key")
    if not slash or KINDS[kind].namespaced != bool(namespace):
        raise Invalid(f"{text!r} is not a key", hint="write kind/namespace/name, or kind//name", parameter="key")
    return Key(kind, namespace, name)


# Writing.


def author_of(call: Call[Any, Any], verb: str = "") -> Author:
    return Author(call.caller, call.address, verb)


async def put(call: Call[VersionQuery, Any], kind: type[Object]) -> Object:
    """Create or replace an object, with a version only that version; the stored status is kept."""
    key = key_of(kind, call.path["name"], call.query.namespace)
    await _check_rights(call, key)
    given = _given(call.body, kind, call.path["name"], call.query.namespace, await call.parts.store.get(key))
    wanted = given.meta.version or call.query.version
    for attempt in range(TRIES):
        stored = await call.parts.store.get(given.key)
        version = stored.meta.version if stored is not None else 0
        if wanted is not None and wanted and wanted != version:
            raise moved(given.key, wanted, version)
        if wanted == 0 and call.query.version is not None and version:
            raise Conflict(f"{given.key} exists already", hint="leave the version out", key=given.key, version=version)
        if stored is None:
            value: Object = _new(given)
        else:
            value = _changed(call, stored, given)
        if value == stored:
            return redacted(stored, call.caller)
        try:
            return await _store(call, value)
        except Conflict:
            if wanted or attempt == TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _new(given: Object) -> Object:
    meta = Meta(name=given.meta.name, namespace=given.meta.namespace, labels=given.meta.labels)
    spec = keep_counts(None, given.spec) if isinstance(given, Workload) else given.spec
    return type(given)(meta=meta, spec=spec)  # type: ignore[call-arg]


def _changed(call: Call[Any, Any], stored: Object, given: Object) -> Object:
    """Return the stored object with the given labels and spec; times of orders to a node are set here."""
    meta, spec = msgspec.structs.replace(stored.meta, labels=given.meta.labels), given.spec
    if isinstance(stored, Node) and isinstance(given, Node):
        spec = stamped(stored.spec, given.spec, call.parts.clock.now())
    elif isinstance(stored, Workload) and isinstance(given, Workload):
        spec = scaled_counts(stored, given.spec)
    return stored.changed(meta=meta, spec=spec)


async def _stored(call: Call[VersionQuery, Any], key: Key) -> Object:
    """Return the stored object; raise `Conflict` if the query names another version."""
    stored = await call.parts.store.get(key)
    if stored is None:
        raise missing(key)
    if call.query.version is not None and call.query.version != stored.meta.version:
        raise moved(key, call.query.version, stored.meta.version)
    return stored


async def _check_rights(call: Call[Any, Any], key: Key) -> None:
    """Raise `Forbidden` before reading an object that the caller may neither read nor write."""
    await read_scope(call.parts.store, call.caller, key.kind, Filter(namespace=key.namespace or None), verb="get")
    check_reach(call.caller, key)


async def _store(call: Call[Any, Any], value: Object) -> Object:
    revision = await commit_as(call.parts, author_of(call), [Put(value)])
    found = await call.parts.store.get(value.key)
    if found is not None and found.meta.version == revision:
        return redacted(found, call.caller)
    # Another writer was faster: return the object as this call has stored it.
    return redacted(value.stamped(version=revision), call.caller)


def _given(body: Any, kind: type[Object], name: str, namespace: str, stored: Object | None) -> Object:
    """Return the object in the body, with the name and namespace of the request."""
    if not isinstance(body, dict):
        raise Invalid("the body has to be an object with `kind`, `meta` and `spec`")
    for key in body:
        if key not in {"kind", "meta", "spec", "status"}:
            hint = did_you_mean(key, ["kind", "meta", "spec", "status"])
            raise Invalid(f"there is no key {key!r}", hint=hint, path=key)
    plain = {part: value for part, value in body.items() if part != "status"}
    meta = plain.setdefault("meta", {})
    if isinstance(meta, dict):
        meta.setdefault("name", name)
        if kind.namespaced:
            meta.setdefault("namespace", namespace)
    if stored is not None and (unknown := unknown_fields_of(stored.meta)) is not None:
        plain = unknown.left_out_of(plain, kind)
    value = _object(plain, kind)
    if value.meta.name != name:
        raise Invalid(f"the body has the name {value.meta.name}, the URL {name}", path="meta.name")
    if value.meta.namespace != (namespace if kind.namespaced else ""):
        raise Invalid(
            f"the body has the namespace {value.meta.namespace or '(none)'}, the URL {namespace}",
            hint="set the namespace with `?namespace=`; cluster-wide kinds such as nodes have none",
            path="meta.namespace",
        )
    return value


def _object(plain: Any, kind: type[Object]) -> Object:
    try:
        return from_plain(plain, kind)
    except msgspec.ValidationError as error:
        raise misfit(error, kind) from error


async def patch(call: Call[VersionQuery, Any], kind: type[Object]) -> Object:
    """Change labels and spec by a JSON merge patch (RFC 7396)."""
    _check_patch(call.body)
    key = key_of(kind, call.path["name"], call.query.namespace)
    await _check_rights(call, key)
    for attempt in range(TRIES):
        stored = await _stored(call, key)
        plain = {"meta": {"labels": dict(stored.meta.labels)}, "spec": to_plain(stored.spec)}
        merged = merge(plain, call.body)
        merged["meta"] = {"name": key.name, "namespace": key.namespace, **merged.get("meta", {})}
        value = _changed(call, stored, _object(merged, kind))
        if value == stored:
            return await read(call.parts.store, call.caller, key)
        try:
            return await _store(call, value)
        except Conflict:
            if call.query.version is not None or attempt == TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _check_patch(body: Any) -> None:
    if not isinstance(body, dict):
        raise Invalid("a patch has to be an object with `spec`, or `meta` with `labels`")
    meta = body.get("meta")
    wrong = [key for key in body if key not in {"meta", "spec"}]
    wrong += [f"meta.{key}" for key in meta if key != "labels"] if isinstance(meta, dict) else []
    if wrong:
        raise Invalid(f"{wrong[0]} cannot be patched", hint="a patch changes `spec` and `meta.labels`", path=wrong[0])
    if "meta" in body and not isinstance(meta, dict):
        raise Invalid("`meta` cannot be removed", path="meta")


def merge(value: Any, patch: Any) -> Any:
    """Return the value with a JSON merge patch (RFC 7396) applied."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), change)
    return merged


async def delete(call: Call[VersionQuery, None], kind: type[Object]) -> Object:
    """Delete an object, or order an instance to stop; a controller stops the instances of a deleted workload."""
    key = key_of(kind, call.path["name"], call.query.namespace)
    await _check_rights(call, key)
    for attempt in range(TRIES):
        stored = await _stored(call, key)
        write: Write = Delete(key, stored.meta.version)
        if isinstance(stored, Instance):
            stopping = stored.stopping("deleted by user", at=call.parts.clock.now())
            if stopping is stored:
                return stored
            write = Put(stopping)
        try:
            revision = await commit_as(call.parts, author_of(call, "delete"), [write], along=await _along(call, stored))
        except Conflict as error:
            if call.query.version is not None or attempt == TRIES - 1 or "version" not in error.facts:
                raise
            continue
        return write.value.stamped(version=revision) if isinstance(write, Put) else redacted(stored, call.caller)
    raise AssertionError("unreachable")


async def _along(call: Call[Any, Any], stored: Object) -> list[Write]:
    """Return the writes that go with a delete: the credential of a node is deleted, too."""
    if not isinstance(stored, Node):
        return []
    call.parts.heartbeats.forget(stored.meta.name)
    token = await call.parts.store.get(Key("token", "", node_token_name(stored.meta.name)))
    return [Delete(token.key, token.meta.version)] if token is not None else []


# The operations.


def _operations(kind: type[Object]) -> list[Operation]:
    plural, name, tag = kind.plural, kind.kind, kind.plural

    def bind(function: Any) -> Any:
        async def handler(call: Call[Any, Any]) -> Any:
            return await function(call, kind)

        return handler

    one = f"/v1/{plural}/{{name}}"
    writers = replace(WRITERS, kind=name)
    found = [
        Operation(
            method="GET",
            path=f"/v1/{plural}",
            name=f"list_{plural}",
            summary=f"List {plural}",
            tag=tag,
            handler=bind(list_kind),
            query=ListQuery,
            result=page_of(kind),
            lane=Lane.BULK,
        ),
        Operation(
            method="GET",
            path=one,
            name=f"get_{name}",
            summary=f"Read one {name}",
            tag=tag,
            handler=bind(get),
            query=NameQuery,
            result=kind,
            refuses=("not_found",),
        ),
    ]
    if name in WRITABLE:
        found += [
            Operation(
                method="PUT",
                path=one,
                name=f"put_{name}",
                summary=f"Create or replace one {name}; with meta.version, only if the stored version is the same",
                tag=tag,
                gate=writers,
                handler=bind(put),
                query=VersionQuery,
                body=Any,
                shape=kind,
                result=kind,
                refuses=("conflict",),
            ),
            Operation(
                method="PATCH",
                path=one,
                name=f"patch_{name}",
                summary=f"Change labels and spec of one {name} by a JSON merge patch",
                tag=tag,
                gate=writers,
                handler=bind(patch),
                query=VersionQuery,
                body=Any,
                shape=dict[str, Any],
                takes=(MERGE_PATCH, JSON),
                result=kind,
                refuses=("not_found", "conflict"),
            ),
        ]
    if name in DELETABLE:
        found.append(
            Operation(
                method="DELETE",
                path=one,
                name=f"delete_{name}",
                summary="Order an instance to stop" if name == "instance" else f"Delete one {name}",
                tag=tag,
                gate=writers,
                handler=bind(delete),
                query=VersionQuery,
                result=kind,
                refuses=("not_found", "conflict"),
            )
        )
    return found


OPERATIONS = [
    *(each for kind in KINDS.values() if kind.kind != "token" for each in _operations(kind)),
    Operation(
        method="GET",
        path="/v1/objects",
        name="get_several",
        summary="Read several objects by their keys, in the same order; missing ones are omitted",
        tag="store",
        handler=get_several,
        query=KeysQuery,
        result=Found,
    ),
]
