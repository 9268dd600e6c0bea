"""EtcdStore: the home of a cluster that must outlive its servers.

An object is one key, `<prefix>objects/<kind>/<namespace>/<name>`; its version is the key's
mod_revision, so a commit is one transaction that compares mod_revisions. Every server keeps the
whole state in memory by one watch over the prefix; reads and watches are answered from there, and
a commit returns once it is there, too.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

from mandor.errors import Conflict, Invalid, MandorError, Unavailable, Unsupported
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock, SystemClock
from mandor.lib.ids import NewId, ordered_uid
from mandor.model.meta import Key, Object
from mandor.store.access import NOBODY, StoreAccess
from mandor.store.base import ALL, Change, Delete, Filter, Listing, Put, SideDoor, Store, Write, check_writes
from mandor.store.draft import conflict, other_uid
from mandor.store.feed import Watch, list_index
from mandor.store.index import BUFFER_MOST, HISTORY_MOST, Index

try:
    from mandor.store.etcd_client import Compacted, Denied, EtcdClient, Lost
    from mandor.store.etcd_health import ailments_of
    from mandor.store.etcd_line import EtcdLine
    from mandor.store.etcd_side_door import EtcdSideDoor
    from mandor.store.etcd_state import EtcdState
    from mandor.store.etcd_transaction import Transaction, transaction, version_of
    from mandor.store.etcd_wire import COMPACT, RANGE, STATUS, TXN, messages
except ImportError as error:  # without grpcio and protobuf
    raise Unsupported(f"a store in etcd needs {error.name}", hint="pip install 'mandor[etcd]'") from error

log = logging.getLogger(__name__)

FLIGHT_MOST = 256
"""So many transactions are on their way at once; further commits wait."""
WAIT_SECONDS = 15.0
"""A commit that is not through by then is reported as not known to be stored."""
KICK_SECONDS = 2.0
COMPACT_SECONDS = 300.0
STATUS_SECONDS = 3.0
"""A member that does not say in time how it is, is away."""
BACKOFF = Backoff(first_seconds=0.05, most_seconds=1.0, jitter=0.5)


class EtcdStore(Store):
    """Made by `open`."""

    def __init__(
        self,
        client: EtcdClient,
        prefix: str,
        *,
        clock: Clock | None = None,
        new_uid: NewId = ordered_uid,
        history_most: int = HISTORY_MOST,
        buffer_most: int = BUFFER_MOST,
        wait_seconds: float = WAIT_SECONDS,
        compact_seconds: float = COMPACT_SECONDS,
    ) -> None:
        self.index = Index(history_most=history_most, buffer_most=buffer_most)
        self._client = client
        self._state = EtcdState(client, prefix, self.index)
        self._clock = clock or SystemClock()
        self._new_uid = new_uid
        self._wait_seconds = wait_seconds
        self._compact_seconds = compact_seconds
        self._slots = asyncio.Semaphore(FLIGHT_MOST)
        self._tasks: list[asyncio.Task[None]] = []
        self._door: EtcdSideDoor | None = None
        self._closed = False

    # Opening and closing.

    @classmethod
    async def open(
        cls, endpoints: Sequence[str], *, prefix: str = "/mandor/", access: StoreAccess = NOBODY, **settings: Any
    ) -> Self:
        """Connect, and load what is there; the settings are those of the constructor."""
        client = EtcdClient(endpoints, access)
        store = cls(client, prefix, **settings)
        line, loop = EtcdLine(endpoints, access), asyncio.get_running_loop()
        store._door = EtcdSideDoor(line, store._state, store._clock, store._new_uid, loop)
        try:
            await store._load()
        except BaseException:
            await client.close()
            raise
        store._tasks = [
            asyncio.create_task(store._state.follow(), name="etcd watch"),
            asyncio.create_task(store._compact(), name="etcd compaction"),
        ]
        for task in store._tasks:
            task.add_done_callback(store._look_at)
        return store

    def _look_at(self, task: "asyncio.Task[None]") -> None:
        """These tasks end only when the store closes; anything else is a bug, and must not go unseen."""
        if not task.cancelled() and task.exception() is not None:
            log.critical("%s ended", task.get_name(), exc_info=task.exception())
            self._state.broken = Unavailable(f"{task.get_name()} ended: {task.exception()!r}", hint="see the log")

    async def _load(self) -> None:
        failures = 0
        while True:
            try:
                return await self._state.load()
            except (Lost, Compacted) as error:
                failures += 1
                if failures >= 5:
                    raise Unavailable(f"cannot load the state from etcd: {error}") from error
                await asyncio.sleep(BACKOFF.pause(failures))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.index.fail_watchers(Unavailable("the store is closed"))
        await self._client.close()
        if self._door is not None:
            self._door.close()

    # The four verbs.

    async def get(self, key: Key) -> Object | None:
        return self.index.get(key)

    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        return await list_index(self.index, kind, where)

    def watch(self, kind: str | None, *, since: int, where: Filter = ALL) -> AsyncIterator[Sequence[Change]]:
        return Watch(self.index, kind, since, where)

    def side_door(self) -> SideDoor | None:
        return self._door

    async def commit(self, *writes: Write) -> int:
        keys = check_writes(writes)
        if self._closed:
            raise Unavailable("the store is closed")
        if self._state.broken is not None:
            raise self._state.broken
        made = self._prepare(writes, keys)
        async with self._slots:
            try:
                revision = await self._transact(made)
            except Conflict as error:
                await self._show_winner(error, made)
                raise
        if revision > self._state.seen:
            await self._show(revision)
        return revision + self._state.offset

    # A commit on its way.

    def _prepare(self, writes: Sequence[Write], keys: Sequence[Key]) -> Transaction:
        """The transaction; what is known to fail is refused at once."""
        for write, key in zip(writes, keys, strict=True):
            self._refuse(write, key, version_of(write))
        return transaction(self._state, writes, keys, now=self._clock.now(), new_uid=self._new_uid)

    def _refuse(self, write: Write, key: Key, version: int) -> None:
        """Versions only grow: a later one in the index, or an earlier history, can never fit again."""
        before = self.index.objects.get(key)
        known = before.meta.version if before is not None else 0
        if 0 < version < known or 0 < version <= self._state.offset or (isinstance(write, Delete) and not version):
            raise conflict(key, version, known)
        if isinstance(write, Put) and before is not None and version == known:
            given, stored = write.value.meta.uid, before.meta.uid
            if given and given != stored:
                raise other_uid(key, given, stored)

    async def _transact(self, made: Transaction) -> int:
        """etcd's revision of the commit. A lost answer is asked for again: comparing makes that safe."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_seconds
        failures, unsure = 0, False
        while True:
            try:
                answer = await self._client.call(TXN, made.request)
            except Denied:
                raise
            except Unavailable as error:
                failure, unsure = error, unsure or isinstance(error, Lost)
            else:
                if answer.succeeded:
                    return self._revision(answer, made)
                if unsure:
                    return await self._find_own(made)
                await self._raise_conflict(made)
                continue
            failures += 1
            if loop.time() >= deadline:
                known = "not known to be stored" if unsure else "not stored"
                raise Unavailable(f"{known}: {failure}", hint=failure.hint) from failure
            await asyncio.sleep(BACKOFF.pause(failures))

    def _revision(self, answer: Any, made: Transaction) -> int:
        if made.values:
            revision = int(answer.header.revision)
            self._state.committed(revision, made.values)
            return revision
        # Only checks: nothing was written, and what they found must be seen here, too.
        return max([self._state.seen, *(version - self._state.offset for _, version in made.wanted if version)])

    async def _raise_conflict(self, made: Transaction) -> None:
        """Say what won; should it be gone again by now, the transaction may be tried again."""
        request = TXN.request()
        for key, _ in made.wanted:
            request.success.add(request_range=RANGE.request(key=self._state.path(key), keys_only=True))
        answer = await self._client.call(TXN, request)
        for (key, version), response in zip(made.wanted, answer.responses, strict=True):
            pairs = response.response_range.kvs
            found = pairs[0].mod_revision + self._state.offset if pairs else 0
            if found != version:
                raise conflict(key, version, found)

    async def _find_own(self, made: Transaction) -> int:
        """An earlier try may have been carried out: then everything is as we wrote it, by one revision."""
        revisions: set[int] = set()
        for key, put in made.values.items():
            answer = await self._client.call(RANGE, RANGE.request(key=self._state.path(key)))
            if put is None:
                revisions.update([0] if answer.kvs else [])
            else:
                found = [pair.mod_revision for pair in answer.kvs if pair.value == put[1]]
                revisions.update(found or [0])
        if len(revisions) == 1 and (revision := revisions.pop()):
            return int(revision)
        raise Unavailable("not known to be stored: etcd gave no answer, and then others wrote", hint="read it again")

    async def _show(self, revision: int) -> None:
        """Wait until the index has it, so that whoever commits can read it."""
        if await self._state.reached(revision, KICK_SECONDS):
            return
        self._state.kick()
        if not await self._state.reached(revision, self._wait_seconds):
            raise Unavailable(
                f"stored with revision {revision}, but the watch does not get there",
                hint="look at the log: can this server watch etcd?",
            )

    async def _show_winner(self, error: Conflict, made: Transaction) -> None:
        """Wait until the index has what won, so that whoever lost reads something new."""
        key: Any = error.facts["key"]
        wanted = dict(made.wanted)[key]

        def moved_on() -> bool:
            found = self.index.objects.get(key)
            return wanted != (found.meta.version if found is not None else 0)

        await self._state.shows(moved_on, KICK_SECONDS)

    # Housekeeping.

    async def ailments(self) -> Sequence[str]:
        return tuple(ailments_of(await self._client.ask_each(STATUS, STATUS.request(), STATUS_SECONDS)))

    async def skip_to(self, revision: int) -> None:
        """Later revisions are greater than this one; only for a store that holds nothing yet."""
        state = self._state
        if revision <= self.index.revision:
            return
        if len(self.index):
            raise Unsupported("the revision can only be raised in an empty store")
        raised = state.offset + revision - self.index.revision
        put = messages["PutRequest"](key=state.offset_path, value=b"%d" % raised)
        state.offset = raised
        answer = await self._client.call(TXN, TXN.request(success=[messages["RequestOp"](request_put=put)]))
        await self._show(answer.header.revision)
        self.index.start_at(state.seen + raised)

    async def _compact(self) -> None:
        """etcd keeps every version of every key until it is told to forget; we need none older than a period."""
        while self._compact_seconds > 0:
            target = self._state.seen
            await asyncio.sleep(self._compact_seconds)
            with suppress(Compacted):  # another server was faster
                try:
                    await self._client.call(COMPACT, COMPACT.request(revision=target))
                except MandorError as error:
                    log.warning("etcd: cannot compact: %s", error)


async def open_etcd(address: str, access: StoreAccess = NOBODY) -> EtcdStore:
    """For `etcd://h1:p1,h2:p2/prefix`; `user:password@` before the hosts is taken, too."""
    hosts, _, prefix = address.removeprefix("//").partition("/")
    credentials, at, hosts = hosts.rpartition("@")
    if at:
        user, _, password = credentials.partition(":")
        access = replace(access, user=user, password=password or access.password)
    endpoints = [_endpoint(host) for host in hosts.split(",") if host]
    return await EtcdStore.open(endpoints, prefix=f"/{prefix.strip('/') or 'mandor'}/", access=access)


def _endpoint(host: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or port.endswith("]"):
        return f"{host}:2379"
    if not name or not port.isdigit():
        raise Invalid(f"{host!r} is no host and port", hint="etcd://10.0.0.1:2379,10.0.0.2:2379/mandor")
    return host
