"""RemoteStore: a store behind the HTTP API, for agents and components on other machines."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from mandor.client.aio import Client, flowing
from mandor.client.problem import error_of
from mandor.errors import Conflict, MandorError, NotFound, Unavailable
from mandor.model.codec import KINDS, decode, encode
from mandor.model.features import gated, without
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.store.base import ALL, Change, Check, Filter, Listing, Put, Store, Write, check_writes, filtered_all

LINE_BYTES_MOST = 8 * 1024 * 1024
"""Bytes per line of a stream; more than the largest object."""
KEYS_MOST = 40
"""Keys per request: even long names fit into one query."""


SUPPLIES_MOST = 256
"""Cached releases and workloads that came with instances of a watch."""
NULL = msgspec.Raw(b"null")


class _Line(Struct, gc=False):
    revision: int = 0
    before: msgspec.Raw = NULL
    after: msgspec.Raw = NULL
    error: msgspec.Raw = NULL
    supply: msgspec.Raw = NULL
    """An object that the following instances need; it is not a change."""


class _About(Struct):
    everywhere: tuple[str, ...] = ()


class _Committed(Struct):
    revision: int


class _Found(Struct):
    items: list[msgspec.Raw]


_lines = msgspec.json.Decoder(_Line)


class RemoteStore(Store):
    """Keeps the guarantees of `Store`; the server checks permissions.

    A commit whose answer is lost raises `Unavailable` and is not repeated: it may have been stored.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, key: Key) -> Object | None:
        kind = KINDS[key.kind]
        query = {"namespace": key.namespace} if kind.namespaced else {}
        try:
            return decode(await self._client.request("GET", f"/v1/{kind.plural}/{quote(key.name)}", query=query))
        except NotFound:
            return None

    async def get_all(self, keys: Sequence[Key]) -> Sequence[Object | None]:
        if len(keys) == 1:
            return [await self.get(keys[0])]
        found: dict[Key, Object] = {}
        for start in range(0, len(keys), KEYS_MOST):
            query = [("key", "/".join(key)) for key in keys[start : start + KEYS_MOST]]
            try:
                answer = await self._client.call("GET", f"/v1/objects?{urlencode(query)}", _Found)
            except NotFound:  # the server is too old for this request
                return await super().get_all(keys)
            found |= {item.key: item for item in map(decode, answer.items)}
        return [found.get(key) for key in keys]

    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        """Return everything at one revision, also of every kind at once: the server streams a snapshot."""
        async with self._client.stream("/v1/snapshot", query=_query(kind, where)) as content:
            lines = [line async for batch in _split(flowing(content)) for line in batch]
        if len(lines) < 2 or not lines[-1].startswith(b'{"end":'):
            raise Unavailable("the connection broke off during the listing", hint="try again")
        revision = _lines.decode(lines[0]).revision
        items = [decode(line) for line in lines[1:-1]]
        # Label values may contain characters that a selector in the query cannot express, so they are compared here.
        return Listing([item for item in items if where.matches(item)] if where.labels else items, revision)

    async def commit(self, *writes: Write) -> int:
        check_writes(writes)
        body = {"writes": [_wire(await self._known(write)) for write in writes]}
        try:
            return (await self._client.call("POST", "/v1/commit", _Committed, body=body)).revision
        except MandorError as error:
            _restore_key(error)
            raise

    async def _known(self, write: Write) -> Write:
        """Return the write without fields that some server does not support yet."""
        if not isinstance(write, Put) or not gated(write.value):
            return write
        return Put(without(write.value, await self._everywhere()))

    async def _everywhere(self) -> frozenset[str]:
        return frozenset((await self._client.call("GET", "/v1", _About)).everywhere)

    async def watch(self, kind: str | None, *, since: int, where: Filter = ALL) -> AsyncIterator[Sequence[Change]]:
        query = _query(kind, where) | {"since": since}
        if where.supplies and "supplies" in await self._everywhere():
            query["supplies"] = True
        supplies: OrderedDict[Key, Object] = OrderedDict()
        async with self._client.stream("/v1/watch", query=query) as content:
            async for lines in _split(content.iter_any()):
                changes = [change for line in lines for change in _changes(line, supplies)]
                if where.labels:
                    changes = filtered_all(changes, where)
                if changes:
                    yield changes
        raise Unavailable("the server ended the watch", hint="watch again from the last revision")

    async def close(self) -> None:
        await self._client.close()


def _query(kind: str | None, where: Filter) -> dict[str, str | int | float | bool | None]:
    return {"kind": kind or ",".join(sorted(where.kinds)) or None, "namespace": where.namespace, "node": where.node}


async def _split(pieces: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield complete lines, as many as have arrived together."""
    rest = b""
    async for piece in pieces:
        lines = (rest + piece).split(b"\n") if rest else piece.split(b"\n")
        rest = lines.pop()
        if len(rest) > LINE_BYTES_MOST:
            raise Unavailable(f"the server sent a line of more than {LINE_BYTES_MOST} bytes")
        if lines:
            yield lines
    if rest:
        raise Unavailable("the connection broke off in the middle of a line", hint="try again")


def _changes(line: bytes, supplies: OrderedDict[Key, Object]) -> list[Change]:
    """Return the changes of a line. Objects that several instances need are sent once, cached and repeated for each."""
    try:
        read = _lines.decode(line)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the server sent a line that is not a change: {error}") from error
    if read.error != NULL:
        raise error_of(msgspec.json.decode(read.error))
    if (supply := _object(read.supply)) is not None:
        supplies[supply.key] = supply
        supplies.move_to_end(supply.key)
        if len(supplies) > SUPPLIES_MOST:
            supplies.popitem(last=False)
        return []
    change = Change(read.revision, _object(read.before), _object(read.after))
    if not supplies or not isinstance(change.after, Instance):
        return [change]
    along = (supplies.get(key) for key in change.after.start_keys)
    return [*(Change(read.revision, None, each) for each in along if each is not None), change]


def _object(raw: msgspec.Raw) -> Object | None:
    return None if raw == NULL else decode(bytes(raw))


def _wire(write: Write) -> dict[str, object]:
    if isinstance(write, Put):
        return {"put": msgspec.Raw(encode(write.value))}
    verb = "check" if isinstance(write, Check) else "delete"
    key = write.key
    return {verb: {"kind": key.kind, "namespace": key.namespace, "name": key.name, "version": write.version}}


def _restore_key(error: MandorError) -> None:
    """Turn the fact `key`, a list in JSON, into a `Key`."""
    key = error.facts.get("key")
    if isinstance(error, Conflict) and isinstance(key, list):
        error.facts["key"] = Key(*key)
