"""The state under a prefix of etcd, kept in an Index by one watch that resumes where it broke off."""

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
from mandor.lib.steps import FEW, WRITTEN, Steps, chosen, emptied, in_turns, ordered
from mandor.model.codec import KINDS, decode
from mandor.model.meta import Key, Object
from mandor.store.base import LARGE_BYTES, Change
from mandor.store.draft import share
from mandor.store.etcd_client import Compacted, EtcdClient
from mandor.store.etcd_wire import EVENT_DELETE, RANGE
from mandor.store.index import Index

log = logging.getLogger(__name__)

PAGE = 500
BACKOFF = Backoff(first_seconds=0.05, most_seconds=2.0, jitter=0.3)


class EtcdState:
    """Revisions inside are etcd's own; those outside are larger by `offset`, which a restore raises."""

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
        """Commits of our own that etcd has acknowledged and the index does not show yet, by revision."""
        self.offset = 0
        self.seen = 0
        """Everything up to this revision of etcd is in the index."""
        self._listing = False
        """All is read again. What we commit meanwhile is shown when that is done: the index stands still."""
        self.broken: Unavailable | None = None
        """Why nothing can be written until this process starts anew."""

    # Names.

    def path(self, key: Key) -> bytes:
        return self._objects + f"{key[0]}/{key[1]}/{key[2]}".encode()

    def _key(self, path: bytes) -> Key | None:
        """The key of an object; None for what is none, or is of a kind that a later version brought."""
        if not path.startswith(self._objects):
            return None
        parts = path[len(self._objects) :].decode(errors="replace").split("/")
        return Key(*parts) if len(parts) == 3 and parts[0] in KINDS else None

    def _object(self, path: bytes, value: bytes, revision: int) -> Object:
        try:
            found = decode(value)
        except Invalid as error:
            raise Invalid(
                f"etcd holds {path.decode(errors='replace')}, which this version of mandor cannot read: {error}",
                hint="was it written by a newer version? upgrade mandor",
            ) from error
        force_setattr(found.meta, "version", revision + self.offset)  # nobody else has seen it yet
        share(found.meta)
        return found

    def read(self, pair: Any) -> Object:
        """What a pair holds."""
        return self._object(pair.key, pair.value, pair.mod_revision)

    # Reading it all.

    async def load(self) -> None:
        """Fill the index, the first time."""
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
        """All pairs under the prefix, as they were at one revision."""
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

    # Following.

    async def follow(self) -> None:
        """Keep the index equal to etcd, for ever."""
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
                log.info("etcd: the watch is begun anew at %s", self._client.endpoint)
            except MandorError as error:
                log.warning("etcd: the watch broke off: %s", error)
            failures = 1 if self.seen > before else failures + 1
            await asyncio.sleep(BACKOFF.pause(failures))

    def kick(self) -> None:
        """Begin the watch anew: what was committed should have been seen by now."""
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
            log.warning("etcd: what happened after revision %d is compacted; listing again", self.seen)
            await self._list_again()

    async def _check_history(self) -> None:
        """An etcd that was restored from a backup has another past than the one we know."""
        known = self.seen  # before asking: a commit of ours may raise it while the answer is on its way
        answer = await self._client.call(RANGE, RANGE.request(key=self._first, count_only=True))
        header = answer.header
        if header.revision < known or header.cluster_id != self._cluster:
            self._break(f"etcd was restored: it is at revision {header.revision}, we have seen {known}")

    def _break(self, story: str) -> None:
        if self.broken is None:
            log.critical("%s; restart this server", story)
        self.broken = Unavailable(story, hint="restart this server: it knows a past that etcd has forgotten")
        raise self.broken

    def _take(self, events: Sequence[Any]) -> None:
        """Publish what happened; the events of one revision come together, and in order."""
        changes: list[Change] = []
        ahead: dict[Key, Object | None] = {}
        revision = self.seen
        for event in events:
            pair = event.kv
            if pair.mod_revision <= self.seen:
                continue  # our own, and known already
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
        """A commit of our own went through. If nothing came in between, the index has it without waiting.

        The watch brings it, too: one message at a time, long after etcd's answer when there are many.
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
                    force_setattr(after.meta, "version", version)  # made for this commit, and nobody has it yet
                changes.append(Change(version, self._index.objects.get(key), after, None, tuple(key), _weight(data)))
            self._index.publish(changes)

    def _see(self, revision: int) -> None:
        """Everything up to this revision is published."""
        if revision > self.seen:
            self.seen = revision
            for passed in [each for each in self._own if each <= revision]:
                del self._own[passed]
        self._catch_up()
        self._index.advance(self.seen + self.offset)
        self._release()

    def _object_or(self, before: Object | None, pair: Any) -> Object | None:
        """What cannot be read is not deleted: better an old object than none."""
        try:
            return self._object(pair.key, pair.value, pair.mod_revision)
        except Invalid as error:
            log.error("%s", error)
            return before

    async def _list_again(self) -> None:
        """Publish the difference between what we have and what etcd has by now, little by little."""
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
        """What is new or other, by revision, and what is gone. The index stands still meanwhile; `pairs` is used up."""
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

    # Waiting for it.

    async def reached(self, revision: int, seconds: float) -> bool:
        """Wait until the index shows this revision (etcd's); False: not in time."""
        if self.seen >= revision:
            return True
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (revision, next(self._count), waiter))
        return await _in_time(waiter, seconds)

    async def shows(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the index fulfils the condition; False: not in time."""
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
    """What has changed and who is gone after one revision until another, in order, a few at a time, and never a part of
    a revision. At which revisions somebody went is not known any more: they go at those of which nothing else is left,
    and whoever is left, at the last. Both lists are used up: to let go of all at once takes long."""
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
    """In the order of their revisions, some at a time, and those of one revision together."""
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
    """The first key after all that begin with the prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
