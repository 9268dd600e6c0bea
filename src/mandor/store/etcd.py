"""EtcdStore: a store in etcd, for clusters with several servers.

An object is one key, `<prefix>objects/<kind>/<namespace>/<name>`; its version is the key's
mod_revision, so a commit is one transaction that compares mod_revisions. Every server keeps the
whole state in memory by one watch over the prefix; reads and watches are answered from there, and
a commit returns once the in-memory state includes it.
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
from mandor.store.access import ANONYMOUS, StoreAccess
from mandor.store.base import ALL, Change, Delete, Filter, LeaseChannel, Listing, Put, Store, Write, check_writes
from mandor.store.draft import conflict, other_uid
from mandor.store.feed import Watch, list_index
from mandor.store.index import BUFFER_MOST, HISTORY_MOST, Index

try:
    from mandor.store.etcd_client import Compacted, Denied, EtcdClient, Lost
    from mandor.store.etcd_health import member_problems
    from mandor.store.etcd_lease_channel import EtcdLeaseChannel
    from mandor.store.etcd_state import EtcdState
    from mandor.store.etcd_thread_client import EtcdThreadClient
    from mandor.store.etcd_transaction import Transaction, transaction, version_of
    from mandor.store.etcd_wire import COMPACT, RANGE, STATUS, TXN, messages
except ImportError as error:  # without grpcio and protobuf
    raise Unsupported(f"a store in etcd needs {error.name}", hint="pip install 'mandor[etcd]'") from error

log = logging.getLogger(__name__)

FLIGHT_MOST = 256
"""Transactions in flight; further commits wait."""
WAIT_SECONDS = 15.0
"""Seconds after which a commit is reported as not known to be stored."""
RESTART_SECONDS = 2.0  # without a committed revision before the watch is restarted
COMPACT_SECONDS = 300.0  # between compactions
STATUS_SECONDS = 3.0
"""Seconds after which a member counts as unavailable."""
AVAILABLE_SECONDS = 3.0
"""Seconds within which a member must answer a read that needs a majority."""
AVAILABLE_FOR_SECONDS = 1.0
"""Seconds for which the result of that check is used again."""
BACKOFF = Backoff(first_seconds=0.05, most_seconds=1.0, jitter=0.5)


class EtcdStore(Store):
    """Opened with `open`."""

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
        self._channel: EtcdLeaseChannel | None = None
        self._available: tuple[float, asyncio.Task[None]] | None = None
        """Time and result of the last check of availability."""
        self._closed = False

    # Opening and closing.

    @classmethod
    async def open(
        cls, endpoints: Sequence[str], *, prefix: str = "/mandor/", access: StoreAccess = ANONYMOUS, **settings: Any
    ) -> Self:
        """Connect and load the state; the settings are those of the constructor."""
        client = EtcdClient(endpoints, access)
        store = cls(client, prefix, **settings)
        line, loop = EtcdThreadClient(endpoints, access), asyncio.get_running_loop()
        store._channel = EtcdLeaseChannel(line, store._state, store._clock, store._new_uid, loop)
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
            task.add_done_callback(store._log_failure)
        return store

    def _log_failure(self, task: "asyncio.Task[None]") -> None:
        """Log the failure of a background task, which otherwise ends only when the store closes."""
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
        tasks = [*self._tasks, *([self._available[1]] if self._available is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.index.fail_watchers(Unavailable("the store is closed"))
        await self._client.close()
        if self._channel is not None:
            self._channel.close()

    # The four verbs.

    async def get(self, key: Key) -> Object | None:
        return self.index.get(key)

    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        return await list_index(self.index, kind, where)

    def watch(self, kind: str | None, *, since: int, where: Filter = ALL) -> AsyncIterator[Sequence[Change]]:
        return Watch(self.index, kind, since, where)

    def lease_channel(self) -> LeaseChannel | None:
        return self._channel

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
                await self._wait_for_winner(error, made)
                raise
        if revision > self._state.seen:
            await self._wait_until_indexed(revision)
        return revision + self._state.offset

    # A commit in flight.

    def _prepare(self, writes: Sequence[Write], keys: Sequence[Key]) -> Transaction:
        """Return the transaction; raise for writes that cannot succeed."""
        for write, key in zip(writes, keys, strict=True):
            self._refuse(write, key, version_of(write))
        return transaction(self._state, writes, keys, now=self._clock.now(), new_uid=self._new_uid)

    def _refuse(self, write: Write, key: Key, version: int) -> None:
        """Raise if the version can never match again: versions only grow."""
        before = self.index.objects.get(key)
        known = before.meta.version if before is not None else 0
        if 0 < version < known or 0 < version <= self._state.offset or (isinstance(write, Delete) and not version):
            raise conflict(key, version, known)
        if isinstance(write, Put) and before is not None and version == known:
            given, stored = write.value.meta.uid, before.meta.uid
            if given and given != stored:
                raise other_uid(key, given, stored)

    async def _transact(self, made: Transaction) -> int:
        """Return etcd's revision of the commit. A call without answer is repeated, which the comparisons make safe."""
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
                    return await self._find_earlier_attempt(made)
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
        # Only checks: nothing was written, but the index must contain the versions that they compared.
        return max([self._state.seen, *(version - self._state.offset for _, version in made.wanted if version)])

    async def _raise_conflict(self, made: Transaction) -> None:
        """Raise the conflict with the stored version; return if no key conflicts any more."""
        request = TXN.request()
        for key, _ in made.wanted:
            request.success.add(request_range=RANGE.request(key=self._state.path(key), keys_only=True))
        answer = await self._client.call(TXN, request)
        for (key, version), response in zip(made.wanted, answer.responses, strict=True):
            pairs = response.response_range.kvs
            found = pairs[0].mod_revision + self._state.offset if pairs else 0
            if found != version:
                raise conflict(key, version, found)

    async def _find_earlier_attempt(self, made: Transaction) -> int:
        """Return the revision of an earlier attempt that succeeded: then all keys have our values and one revision."""
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
        raise Unavailable(
            "not known to be stored: the answer was lost and the objects changed since", hint="read it again"
        )

    async def _wait_until_indexed(self, revision: int) -> None:
        """Wait until the index contains the revision, so that the caller can read its own writes."""
        if await self._state.reached(revision, RESTART_SECONDS):
            return
        self._state.restart_watch()
        if not await self._state.reached(revision, self._wait_seconds):
            raise Unavailable(
                f"stored with revision {revision}, but the watch did not deliver it",
                hint="see the log: can this server watch etcd?",
            )

    async def _wait_for_winner(self, error: Conflict, made: Transaction) -> None:
        """Wait until the index contains the winning change, so that the caller reads it next."""
        key: Any = error.facts["key"]
        wanted = dict(made.wanted)[key]

        def moved_on() -> bool:
            found = self.index.objects.get(key)
            return wanted != (found.meta.version if found is not None else 0)

        await self._state.shows(moved_on, RESTART_SECONDS)

    # Maintenance.

    async def problems(self) -> Sequence[str]:
        return tuple(member_problems(await self._client.call_each(STATUS, STATUS.request(), STATUS_SECONDS)))

    async def check_available(self) -> None:
        """Read a key through a majority of the members; callers at the same time share one read."""
        now = asyncio.get_running_loop().time()
        if self._available is None or (self._available[1].done() and now - self._available[0] >= AVAILABLE_FOR_SECONDS):
            self._available = now, asyncio.create_task(self._read_from_majority(), name="etcd availability")
        await asyncio.shield(self._available[1])

    async def _read_from_majority(self) -> None:
        request = RANGE.request(key=self._state.offset_path, count_only=True)
        try:
            async with asyncio.timeout(2 * AVAILABLE_SECONDS):  # an authentication can come first
                await self._client.call_any(RANGE, request, AVAILABLE_SECONDS)
        except (Unavailable, TimeoutError) as error:
            raise Unavailable(
                f"etcd has no majority of members that answer: {str(error) or 'no answer in time'}",
                hint="start the missing etcd members, or restore the network to them; running instances continue, and "
                "the servers continue without a restart",
            ) from error

    async def skip_to(self, revision: int) -> None:
        """Make later revisions greater than this one; only for an empty store."""
        state = self._state
        if revision <= self.index.revision:
            return
        if len(self.index):
            raise Unsupported("the revision can only be raised in an empty store")
        raised = state.offset + revision - self.index.revision
        put = messages["PutRequest"](key=state.offset_path, value=b"%d" % raised)
        state.offset = raised
        answer = await self._client.call(TXN, TXN.request(success=[messages["RequestOp"](request_put=put)]))
        await self._wait_until_indexed(answer.header.revision)
        self.index.start_at(state.seen + raised)

    async def _compact(self) -> None:
        """Compact etcd's history regularly; versions older than one period are not needed."""
        while self._compact_seconds > 0:
            target = self._state.seen
            await asyncio.sleep(self._compact_seconds)
            with suppress(Compacted):  # another server was faster
                try:
                    await self._client.call(COMPACT, COMPACT.request(revision=target))
                except MandorError as error:
                    log.warning("etcd: cannot compact: %s", error)


async def open_etcd(address: str, access: StoreAccess = ANONYMOUS) -> EtcdStore:
    """Open `etcd://h1:p1,h2:p2/prefix`; `user:password@` may precede the hosts."""
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
        raise Invalid(f"{host!r} is not HOST:PORT", hint="etcd://10.0.0.1:2379,10.0.0.2:2379/mandor")
    return host
