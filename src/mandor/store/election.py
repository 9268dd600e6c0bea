"""Election: a lease decides which process leads, and a check of its term fences every write of the leader.

Two leases: the holder renews `leader-<name>` while it runs; `term-<name>` is written only when
the leadership changes hands. Every commit of a leader checks the version of its term, so a former
leader that was paused and has not noticed its successor cannot write.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mandor.errors import Conflict, MandorError
from mandor.lib.clock import Clock
from mandor.model.meta import Key, Meta
from mandor.model.record import Lease, LeaseSpec
from mandor.store.base import Check, LeaseChannel, Put, Store, Write
from mandor.store.fence import FencedStore
from mandor.store.lease_renewer import LOST_SHARE, LeaseRenewer

log = logging.getLogger(__name__)

Work = Callable[[Store], Awaitable[None]]
RELEASE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Observation:
    """Version of a lease, and when it was first seen on this process's monotonic clock."""

    version: int
    at: float


class Election:
    def __init__(
        self,
        store: Store,
        name: str,
        holder: str,
        seconds: float,
        clock: Clock,
        address: str = "",
        lease_channel: LeaseChannel | None = None,
    ) -> None:
        """`lease_channel`: if given, a `LeaseRenewer` thread renews the lease independently of the event loop."""
        self._store = store
        self._channel = lease_channel
        self._name = name
        self._holder = holder
        self._seconds = seconds
        self._clock = clock
        self._address = address
        self._lease_key = Key(Lease.kind, "", f"leader-{name}")
        self._term_key = Key(Lease.kind, "", f"term-{name}")
        self._observed: _Observation | None = None
        self.leading = False

    async def run(self, work: Work) -> None:
        """Wait for the leadership, run `work` while it lasts, and repeat; return when the work is done."""
        while True:
            try:
                term = await self._win()
            except MandorError as error:
                log.warning("%s: cannot read the lease: %s", self._name, error)
                await self._clock.sleep(self._pause)
                continue
            if await self._lead(work, term):
                return

    @property
    def _pause(self) -> float:
        return self._seconds / 5

    # Waiting for the leadership.

    async def _win(self) -> int:
        """Wait until the leadership is free, and take it; return the version of the new term."""
        while True:
            lease = await self._read(self._lease_key)
            if self._is_free(lease):
                # A conflict: another process was faster. Read the lease again.
                with suppress(Conflict):
                    return await self._take(lease)
            await self._clock.sleep(self._pause)

    async def _read(self, key: Key) -> Lease | None:
        found = await self._store.get(key)
        return found if isinstance(found, Lease) else None

    def _is_free(self, lease: Lease | None) -> bool:
        """Return whether the lease is absent, released, or unchanged for its whole duration on the local clock."""
        if lease is None or not lease.spec.holder:
            return True
        now = self._clock.monotonic()
        if self._observed is None or self._observed.version != lease.meta.version:
            self._observed = _Observation(lease.meta.version, now)
        return now - self._observed.at >= lease.spec.seconds

    async def _take(self, lease: Lease | None) -> int:
        term = await self._read(self._term_key)
        number = term.spec.renewals + 1 if term is not None else 1
        return await self._store.commit(
            Put(self._lease(self._lease_key, lease, self._holder, renewals=0)),
            Put(self._lease(self._term_key, term, self._holder, renewals=number)),
        )

    def _lease(self, key: Key, known: Lease | None, holder: str, *, renewals: int) -> Lease:
        meta = known.meta if known is not None else Meta(name=key.name)
        return Lease(meta=meta, spec=LeaseSpec(holder, self._seconds, renewals, self._address))

    # Leading.

    async def _lead(self, work: Work, term: int) -> bool:
        """Run `work` until it is done (True) or the leadership is lost (False)."""
        log.info("%s: %s is the leader, term %d", self._name, self._holder, term)
        lost = asyncio.Event()
        fenced = FencedStore(self._store, Check(self._term_key, term), lost.set)
        working = asyncio.ensure_future(work(fenced))
        keeping = asyncio.ensure_future(self._keep(term))
        losing = asyncio.ensure_future(lost.wait())
        self.leading = True
        try:
            await asyncio.wait({working, keeping, losing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.leading = False
            deposed = lost.is_set() or keeping.done()
            over = working.done()
            for task in (losing, keeping, working):
                await _end(task)
            if not deposed:
                await self._release(term)
        if keeping.done() and not keeping.cancelled():
            keeping.result()  # Raises a bug in the renewal, which is not a lost leadership.
        if not deposed or not _expected(working):
            working.result()
        if deposed:
            log.warning("%s: %s is no longer the leader, term %d", self._name, self._holder, term)
        return over and not deposed

    async def _keep(self, term: int) -> None:
        """Renew the lease; return when it is lost, or may have expired."""
        if self._channel is not None:
            channel = self._channel
            await LeaseRenewer(
                self._name, lambda most: self._renew_by(channel, term, most), self._seconds, self._pause
            ).run()
            return
        renewed = self._clock.monotonic()
        while True:
            await self._clock.sleep(self._pause)
            begun = self._clock.monotonic()
            try:
                await self._renew(term)
                renewed = begun
            except Conflict as error:
                log.warning("%s: another process is the leader: %s", self._name, error)
                return
            except MandorError as error:
                log.warning("%s: cannot renew the lease: %s", self._name, error)
                # Other processes count from when they saw the last renewal, which was after it started.
                if self._clock.monotonic() - renewed >= self._seconds * LOST_SHARE:
                    return

    async def _renew(self, term: int) -> None:
        writes = self._renewal(await self._read(self._lease_key), term)
        if not writes:
            raise Conflict("another process holds the lease")
        await self._store.commit(*writes)

    def _renew_by(self, channel: LeaseChannel, term: int, most_seconds: float) -> bool:
        """Renew the lease in a thread. A conflict is retried: it may come from a renewal whose answer was lost."""
        lease = channel.get(self._lease_key, most_seconds)
        writes = self._renewal(lease if isinstance(lease, Lease) else None, term)
        if not writes:
            log.warning("%s: another process is the leader", self._name)
            return False
        channel.commit(*writes, seconds=most_seconds)
        return True

    def _renewal(self, lease: Lease | None, term: int) -> Sequence[Write]:
        """Return the writes that renew the lease; empty if another process holds it."""
        if lease is None or lease.spec.holder != self._holder:
            return ()
        renewed = self._lease(self._lease_key, lease, self._holder, renewals=lease.spec.renewals + 1)
        return Put(renewed), Check(self._term_key, term)

    async def _release(self, term: int) -> None:
        """Release the lease, so that the next leader need not wait until it expires."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                lease = await self._read(self._lease_key)
                if lease is not None and lease.spec.holder == self._holder:
                    free = self._lease(self._lease_key, lease, "", renewals=0)
                    await self._store.commit(Put(free), Check(self._term_key, term))
        except (MandorError, TimeoutError) as error:
            log.info("%s: the lease was not released and will expire: %s", self._name, error)


async def _end(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # Marks the exception as retrieved; callers read it from the result.


def _expected(task: "asyncio.Future[None]") -> bool:
    """Return whether the work ended in a way that is normal after the leadership was lost."""
    return task.cancelled() or _all_ours(task.exception())


def _all_ours(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_all_ours(each) for each in error.exceptions)
    return error is None or isinstance(error, MandorError | asyncio.CancelledError)
