"""SqliteStore: the embedded default. State in memory, every commit on disk before it returns.

One thread owns the one connection. Commits are checked on the event loop against the state including
all commits in flight, and queued; the thread writes all queued commits in one transaction, so that they
share one fsync; then they are published in order.

A second connection to the same file would also be unsafe: SQLite before 3.51.3 can lose
committed pages when two connections write and checkpoint at the same moment.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from shutil import disk_usage
from typing import Any, Self

from mandor.errors import Conflict, Invalid, MandorError, Unavailable
from mandor.lib.clock import Clock, SystemClock
from mandor.lib.ids import NewId, ordered_uid
from mandor.model.meta import Key, Object
from mandor.store.access import ANONYMOUS, StoreAccess
from mandor.store.base import ALL, LARGE_BYTES, Change, Filter, KeyTuple, Listing, Store, Write, check_writes
from mandor.store.draft import draft, encoded
from mandor.store.feed import Watch, list_index
from mandor.store.file_check import check_file
from mandor.store.index import BUFFER_MOST, HISTORY_MOST, Index
from mandor.store.state_file import row_key, with_sum
from mandor.store.state_writer import Commit, StateWriter

log = logging.getLogger(__name__)

FLIGHT_WRITES = 10_000  # writes
FLIGHT_BYTES = 64 << 20
"""Writes and bytes that may wait for the disk; further commits wait to be queued."""
FREE_BYTES_LEAST = 512 * 2**20
"""Free bytes on the disk below which the store reports a problem."""
WAIT_SECONDS = 15.0
"""Seconds after which a commit is reported as not known to be stored."""
LOAD_CHUNK = 2_000  # objects
RETRIES = 10  # of a commit that conflicts with commits in flight


class SqliteStore(Store):
    """Opened with `open`; reads use the index, writes go through the thread."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        new_uid: NewId = ordered_uid,
        history_most: int = HISTORY_MOST,
        buffer_most: int = BUFFER_MOST,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.index = Index(history_most=history_most, buffer_most=buffer_most)
        self.path = path
        self._clock = clock or SystemClock()
        self._new_uid = new_uid
        self._wait_seconds = wait_seconds
        self._loop = asyncio.get_running_loop()
        self._writer = StateWriter(path, self._settle, self._fail)
        self._issued = 0
        """Highest revision assigned to a commit, stored or not; revisions are never reused."""
        self._round = 0
        self._pending: dict[KeyTuple, Change] = {}
        """Changes in flight, by key."""
        self._flight: deque[Commit] = deque()
        self._flight_writes = 0
        self._flight_bytes = 0
        self._admission: deque[asyncio.Future[None]] = deque()
        self._report: asyncio.Future[None] | None = None
        self._watchdog: asyncio.TimerHandle | None = None
        self._closing = False

    # Opening and closing.

    @classmethod
    async def open(cls, path: str | Path, **settings: Any) -> Self:
        """Open the file and load its objects; the settings are those of the constructor."""
        store = cls(Path(path), **settings)
        await store._start()
        return store

    async def _start(self) -> None:
        revision, items = await self._writer.start()
        left = iter(items)
        while chunk := list(islice(left, LOAD_CHUNK)):
            self.index.load(chunk)
            await asyncio.sleep(0)
        newest = max((item.meta.version for item in items), default=0)
        if newest > revision:
            await self._writer.close()
            raise Invalid(
                f"{self.path} is damaged: it is at revision {revision} but holds an object of revision {newest}",
                hint="`mandor recover` shows what can be recovered",
            )
        self.index.start_at(revision)
        self._issued = revision

    async def close(self) -> None:
        """Write what is in flight, then close the file."""
        if not self._closing:
            self._closing = True
            self.index.fail_watchers(Unavailable("the store is closed"))
        await self._writer.close()
        if self._watchdog is not None:
            self._watchdog.cancel()

    # The four verbs.

    async def get(self, key: Key) -> Object | None:
        return self.index.get(key)

    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        return await list_index(self.index, kind, where)

    def watch(self, kind: str | None, *, since: int, where: Filter = ALL) -> AsyncIterator[Sequence[Change]]:
        return Watch(self.index, kind, since, where)

    async def commit(self, *writes: Write) -> int:
        keys = check_writes(writes)
        for _ in range(RETRIES):
            if self._admission or self._full:
                await self._room()
            try:
                commit = self._prepare(writes, keys)
            except Conflict as error:
                if error.facts["key"] not in self._pending:
                    raise
                # The winning change is not stored yet. Wait for it: it may fail, and the caller
                # who reads again must see it.
                await self._wait_for_pending(error.facts["key"])
            else:
                self._submit(commit)
                return await commit.done
        raise Unavailable("too many concurrent commits to the same objects", hint="try again")

    async def problems(self) -> Sequence[str]:
        free = (await asyncio.to_thread(disk_usage, self.path.parent)).free
        if free >= FREE_BYTES_LEAST:
            return ()
        return (
            f"the disk of {self.path} has {free / 2**20:.0f} MiB left: free some space, a full disk stops all writes",
        )

    async def skip_to(self, revision: int) -> None:
        """Make later revisions greater than this one; stored with the next commit."""
        while self._flight:
            await self._settled()
        self._issued = max(self._issued, revision)
        if revision > self.index.revision:
            self.index.start_at(revision)

    # A commit in flight, on the event loop.

    def _prepare(self, writes: Sequence[Write], keys: Sequence[Key]) -> Commit:
        """Check the writes against the state including all commits in flight."""
        if self._closing:
            raise Unavailable("the store is closed")
        revision = self._issued + 1
        changes = draft(
            writes,
            keys,
            self.index.objects,
            revision=revision,
            now=self._clock.now(),
            new_uid=self._new_uid,
            pending=self._pending,
        )
        puts: list[str | bytes] = []
        gone: list[str] = []
        size = 0
        for change in changes:
            before, after = change.before, change.after
            key = change.key_tuple or ()  # `draft` always sets it
            if before is not None and (after is None or after.meta.uid != before.meta.uid):
                gone.append(row_key(before.meta.uid, key))
            if after is not None:
                data, row = encoded(after, key), row_key(after.meta.uid, key)
                size += len(data)
                if len(data) > LARGE_BYTES:
                    change.size = len(data)
                puts += (row, with_sum(row, data))
        if not changes:
            revision = self._issued
        done = self._loop.create_future()
        return Commit(revision, changes, puts, gone, size, self._round, self._loop.time(), done)

    def _submit(self, commit: Commit) -> None:
        self._issued = commit.revision
        self._pending.update([(change.key_tuple, change) for change in commit.changes])  # type: ignore[misc]
        self._flight.append(commit)
        self._flight_writes += len(commit.changes)
        self._flight_bytes += commit.size
        self._writer.put(commit)
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._wait_seconds, self._fail_stuck)

    @property
    def _full(self) -> bool:
        return self._flight_writes >= FLIGHT_WRITES or self._flight_bytes >= FLIGHT_BYTES

    async def _room(self) -> None:
        """Wait, in the order of arrival, until the queue has room."""
        place = self._loop.create_future()
        self._admission.append(place)
        try:
            async with asyncio.timeout(self._wait_seconds):
                await place
        except TimeoutError:
            raise self._stuck() from None
        finally:
            with suppress(ValueError):
                self._admission.remove(place)
            if not self._flight:
                self._admit()  # This caller may have been the last one that would admit others.

    def _admit(self) -> None:
        free = FLIGHT_WRITES - self._flight_writes
        while self._admission and free > 0 and not self._full:
            place = self._admission.popleft()
            if not place.done():
                place.set_result(None)
                free -= 1

    async def _wait_for_pending(self, key: object) -> None:
        """Wait until the change in flight for this key is stored or has failed."""
        rival = self._pending.get(key)  # type: ignore[call-overload]
        while rival is not None and self._pending.get(key) is rival:  # type: ignore[call-overload]
            await self._settled()

    async def _settled(self) -> None:
        """Wait until the thread reports the next batch."""
        if self._report is None:
            self._report = self._loop.create_future()
        await asyncio.shield(self._report)

    def _settle(self, batch: Sequence[Commit]) -> None:
        """Publish a stored batch, then wake its callers."""
        changes: list[Change] = []
        for commit in batch:
            oldest = self._flight.popleft()
            assert oldest is commit
            self._flight_writes -= len(commit.changes)
            self._flight_bytes -= commit.size
            changes += commit.changes
        pending = self._pending
        for change in changes:
            if pending[change.key_tuple] is change:  # type: ignore[index]
                del pending[change.key_tuple]  # type: ignore[arg-type]
        self.index.publish(changes)
        for commit in batch:
            if not commit.done.done():
                commit.done.set_result(commit.revision)
        self._after_report()

    def _fail(self, round_: int, error: MandorError) -> None:
        """Fail all commits in flight: the batch was not stored, and later commits were checked on top of it."""
        assert round_ == self._round
        self._round += 1
        log.error("%d commits failed: %s", len(self._flight), error)
        failed, self._flight = self._flight, deque()
        self._flight_writes = self._flight_bytes = 0
        self._pending.clear()
        for commit in failed:
            if not commit.done.done():
                commit.done.set_exception(Unavailable(error.message, hint=error.hint))
        self._after_report()

    def _after_report(self) -> None:
        report, self._report = self._report, None
        if report is not None:
            report.set_result(None)
        self._admit()

    def _fail_stuck(self) -> None:
        """Fail commits that have waited too long for the disk; they are published if they are stored after all."""
        self._watchdog = None
        now = self._loop.time()
        for commit in self._flight:
            if now - commit.since < self._wait_seconds:
                break
            if not commit.done.done():
                commit.done.set_exception(self._stuck())
        if self._flight:
            self._watchdog = self._loop.call_later(1.0, self._fail_stuck)

    def _stuck(self) -> Unavailable:
        return Unavailable(
            f"{self.path} could not be written within {self._wait_seconds:g} s; the commit is not known to be stored",
            hint="check whether the disk is too slow or hangs",
        )


async def open_sqlite(address: str | Path, access: StoreAccess = ANONYMOUS) -> SqliteStore:
    """Open `sqlite:PATH`; the file is created if it does not exist."""
    if not str(address):
        raise Invalid("the URL of an SQLite store needs a file", hint="sqlite:/var/lib/mandor/state.db")
    await asyncio.to_thread(check_file, Path(address), access.marker, accept_older=access.accept_older)
    return await SqliteStore.open(address)
