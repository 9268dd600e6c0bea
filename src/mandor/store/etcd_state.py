"""The state under a prefix of etcd, kept in an `Index` by one watch that resumes after interruptions."""

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any

from msgspec.structs import force_setattr

from mandor.errors import Invalid, MandorError, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.steps import FEW, WRITTEN, Steps, chosen, emptied, ordered
from mandor.lib.turns import in_turns
from mandor.model.codec import KINDS, decode
from mandor.model.meta import Key, Object
from mandor.store.base import LARGE_BYTES, Change
from mandor.store.draft import share
from mandor.store.etcd_client import Compacted, EtcdClient
from mandor.store.etcd_wire import EVENT_DELETE, RANGE
from mandor.store.index import Index

log = logging.getLogger(__name__)

PAGE = 500  # keys per range request
BACKOFF = Backoff(first_seconds=0.05, most_seconds=2.0, jitter=0.3)


class EtcdState:
    """Revisions inside are etcd's own; those of the store are larger by `offset`, which a restore raises."""

    def __init__(self, client: EtcdClient, prefix: str, index: Index) -> None:
        self._client = client
        self._first = prefix.encode()
        self._end = _prefix_end(self._first)
        self._objects = self._first + b"objects/"
        self.offset_path = self._first + b"offset"
        self._index = index
        self._cluster = 0
        self._attempt: asyncio.Task[None] | None = None
        self._waiting: list[tuple[int, int, asyncio.Future[bool]]] = []
        self._watching: list[tuple[Callable[[], bool], asyncio.Future[bool]]] = []
        self._count = count()
        self._own: dict[int, Mapping[Key, tuple[Object, bytes] | None]] = {}
        """Own commits, by revision, that etcd has acknowledged and the index does not contain yet."""
        self.offset = 0
        self.seen = 0
        """The index contains everything up to this revision of etcd."""
        self._listing = False
        """Whether the whole state is being read again; own commits are applied after that."""
        self.broken: Unavailable | None = None
        """Reason why this process must be restarted before it can write again."""

    # Names.

    def path(self, key: Key) -> bytes:
        return self._objects + f"{key[0]}/{key[1]}/{key[2]}".encode()

    def _key(self, path: bytes) -> Key | None:
        """Return the key of an object; None for other entries and for kinds of a later version."""
        if not path.startswith(self._objects):
            return None
        parts = path[len(self._objects) :].decode(errors="replace").split("/")
        return Key(*parts) if len(parts) == 3 and parts[0] in KINDS else None

    def _object(self, path: bytes, value: bytes, revision: int) -> Object:
        try:
            found = decode(value)
        except Invalid as error:
            raise Invalid(
                f"etcd contains {path.decode(errors='replace')}, which this version of mandor cannot read: {error}",
                hint="a newer version of mandor may have written it: upgrade this one",
            ) from error
        force_setattr(found.meta, "version", revision + self.offset)  # not shared with other code yet
        share(found.meta)
        return found

    def read(self, pair: Any) -> Object:
        """Return the object of a key-value pair."""
        return self._object(pair.key, pair.value, pair.mod_revision)

    # Reading everything.

    async def load(self) -> None:
        """Fill the index at start."""
        revision, pairs = await self._read_all()
        self._take_offset(pairs)
        for start in range(0, len(pairs), PAGE):
            chunk = pairs[start : start + PAGE]
            self._index.load(
                self._object(pair.key, pair.value, pair.mod_revision) for pair in chunk if self._key(pair.key)
            )
            await asyncio.sleep(0)
        self.seen = revision
        self._index.start_at(revision + self.offset)

    def _take_offset(self, pairs: Sequence[Any]) -> None:
        for pair in pairs:
            if pair.key == self.offset_path:
                self.offset = int(pair.value)

    async def _read_all(self) -> tuple[int, list[Any]]:
        """Return all pairs under the prefix at one revision."""
        pairs: list[Any] = []
        revision, first = 0, self._first
        while True:
            page = await self._client.call(
                RANGE, RANGE.request(key=first, range_end=self._end, limit=PAGE, revision=revision)
            )
            revision = revision or page.header.revision
            self._cluster = self._cluster or page.header.cluster_id
            pairs += page.kvs
            if not page.more:
                return revision, pairs
            first = page.kvs[-1].key + b"\0"

    # Watching.

    async def follow(self) -> None:
        """Keep the index equal to etcd until cancelled."""
        failures = 0
        while True:
            before = self.seen
            self._attempt = asyncio.create_task(self._watch_once())
            try:
                await asyncio.wait({self._attempt})
            finally:
                self._attempt.cancel()
            try:
                self._attempt.result()
            except asyncio.CancelledError:
                log.info("etcd: restarting the watch at %s", self._client.endpoint)
            except MandorError as error:
                log.warning("etcd: the watch broke off: %s", error)
            failures = 1 if self.seen > before else failures + 1
            await asyncio.sleep(BACKOFF.pause(failures))

    def restart_watch(self) -> None:
        """Restart the watch, because it did not deliver a commit in time."""
        if self._attempt is not None and not self._listing:
            self._attempt.cancel()

    async def _watch_once(self) -> None:
        await self._check_history()
        responses = self._client.watch(self._first, self._end, self.seen + 1)
        try:
            async with aclosing(responses) as stream:
                async for response in stream:
                    self._take(response.events)
        except Compacted:
            log.warning("etcd: the changes after revision %d are compacted; listing again", self.seen)
            await self._list_again()

    async def _check_history(self) -> None:
        """Detect an etcd that was restored from a backup: its history differs from the one in the index."""
        known = self.seen  # read before the call: an own commit may raise it meanwhile
        answer = await self._client.call(RANGE, RANGE.request(key=self._first, count_only=True))
        header = answer.header
        if header.revision < known or header.cluster_id != self._cluster:
            self._break(f"etcd was restored: it is at revision {header.revision}, this server has seen {known}")

    def _break(self, message: str) -> None:
        if self.broken is None:
            log.critical("%s; restart this server", message)
        self.broken = Unavailable(message, hint="restart this server: its state is newer than that of etcd")
        raise self.broken

    def _take(self, events: Sequence[Any]) -> None:
        """Publish the events of one response, in order; those of one revision come together."""
        changes: list[Change] = []
        ahead: dict[Key, Object | None] = {}
        revision = self.seen
        for event in events:
            pair = event.kv
            if pair.mod_revision <= self.seen:
                continue  # an own commit that is already published
            revision = pair.mod_revision
            if pair.key == self.offset_path and int(pair.value or b"0") != self.offset:
                self._break("the cluster was restored from a backup")
            key = self._key(pair.key)
            if key is None:
                continue
            before = ahead[key] if key in ahead else self._index.objects.get(key)
            after = None if event.type == EVENT_DELETE else self._object_or(before, pair)
            ahead[key] = after
            if before is not None or after is not None:
                changes.append(Change(revision + self.offset, before, after, None, tuple(key), _weight(pair.value)))
        self._index.publish(changes)
        self._see(revision)

    def committed(self, revision: int, values: Mapping[Key, tuple[Object, bytes] | None]) -> None:
        """Record an own commit; publish it at once if it directly follows the index's revision.

        The watch delivers it as well, but later: under load, long after etcd's answer.
        """
        if revision > self.seen:
            self._own[revision] = values
            if revision == self.seen + 1 and not self._listing:
                self._see(self.seen)

    def _catch_up(self) -> None:
        while (values := self._own.pop(self.seen + 1, None)) is not None:
            self.seen += 1
            version = self.seen + self.offset
            changes = []
            for key, put in values.items():
                after, data = put or (None, b"")
                if after is not None:
                    force_setattr(after.meta, "version", version)  # made for this commit, and not shared yet
                changes.append(Change(version, self._index.objects.get(key), after, None, tuple(key), _weight(data)))
            self._index.publish(changes)

    def _see(self, revision: int) -> None:
        """Record that everything up to this revision is published."""
        if revision > self.seen:
            self.seen = revision
            for passed in [each for each in self._own if each <= revision]:
                del self._own[passed]
        self._catch_up()
        self._index.advance(self.seen + self.offset)
        self._release()

    def _object_or(self, before: Object | None, pair: Any) -> Object | None:
        """Return the decoded object, or `before` if it cannot be decoded: an old object is better than none."""
        try:
            return self._object(pair.key, pair.value, pair.mod_revision)
        except Invalid as error:
            log.error("%s", error)
            return before

    async def _list_again(self) -> None:
        """Publish the differences between the index and etcd in small steps."""
        self._listing = True
        try:
            revision, pairs = await self._read_all()
            changed, gone = await in_turns(self._differences(pairs))
            for piece in in_pieces(changed, gone, self._index.revision, revision + self.offset):
                self._index.publish(piece)
                await asyncio.sleep(0)
        finally:
            self._listing = False
        self._index.start_at(revision + self.offset)
        self._see(revision)

    def _differences(self, pairs: list[Any]) -> Steps[tuple[list[Change], list[Object]]]:
        """Return changed objects by revision, and deleted ones; consumes `pairs`. The index must not change."""
        objects = self._index.objects
        there: set[tuple[str, ...]] = set()
        changed: list[Change] = []
        while pairs:
            some = pairs[-FEW:]
            del pairs[-FEW:]
            for pair in some:
                if key := self._key(pair.key):
                    place = tuple(key)
                    there.add(place)
                    before = objects.get(place)
                    if before is None or before.meta.version != pair.mod_revision + self.offset:
                        after = self._object_or(before, pair)
                        revision, size = pair.mod_revision + self.offset, _weight(pair.value)
                        changed.append(Change(revision, before, after, None, place, size))
            yield WRITTEN * len(some)
        by_revision = yield from ordered(changed, key=lambda change: change.revision)
        gone = yield from chosen(list(objects), lambda piece: [objects[place] for place in piece if place not in there])
        yield from emptied(there)
        return by_revision, gone

    # Waiting for a revision.

    async def reached(self, revision: int, seconds: float) -> bool:
        """Wait until the index contains this revision of etcd; return False after `seconds`."""
        if self.seen >= revision:
            return True
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (revision, next(self._count), waiter))
        return await _in_time(waiter, seconds)

    async def shows(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the condition holds for the index; return False after `seconds`."""
        if condition():
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._watching.append((condition, waiter))
        return await _in_time(waiter, seconds)

    def _release(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.seen:
            _set(heapq.heappop(self._waiting)[2], True)
        if self._watching:
            still = []
            for condition, waiter in self._watching:
                if waiter.done():
                    continue
                if condition():
                    _set(waiter, True)
                else:
                    still.append((condition, waiter))
            self._watching = still


def in_pieces(changed: list[Change], gone: list[Object], since: int, until: int) -> Iterator[list[Change]]:
    """Yield changes after revision `since` until revision `until`, in order, in small batches of whole revisions.

    The revisions of the deletions are unknown: they are assigned to revisions without other changes, and the
    rest to the last one. Both lists are consumed, because freeing them at once would block the event loop.
    """
    last = since
    for piece in _whole_revisions(changed):
        while gone and last + 1 < piece[0].revision:
            last += 1
            yield [Change(last, each, None) for each in gone[-FEW:]]
            del gone[-FEW:]
        last = piece[-1].revision
        if last < until:
            yield piece
        else:
            yield piece + [Change(until, each, None) for each in gone]
            gone.clear()
    while gone:
        last += 1
        some = gone[-FEW:] if last < until else gone[:]
        yield [Change(last, each, None) for each in some]
        del gone[-len(some) :]


def _whole_revisions(changes: list[Change]) -> Iterator[list[Change]]:
    """Yield the changes in order of their revisions, in small batches that never split a revision."""
    changes.reverse()
    while changes:
        piece = [changes.pop()]
        while changes and (len(piece) < FEW or changes[-1].revision == piece[-1].revision):
            piece.append(changes.pop())
        yield piece


async def _in_time(waiter: "asyncio.Future[bool]", seconds: float) -> bool:
    timer = asyncio.get_running_loop().call_later(seconds, _set, waiter, False)
    try:
        return await waiter
    finally:
        timer.cancel()


def _set(waiter: "asyncio.Future[bool]", result: bool) -> None:
    if not waiter.done():
        waiter.set_result(result)


def _weight(data: bytes) -> int:
    return size if (size := len(data)) > LARGE_BYTES else 0


def _prefix_end(prefix: bytes) -> bytes:
    """Return the first key after all keys with this prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
