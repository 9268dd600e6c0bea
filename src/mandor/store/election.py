"""Election: at most one leader writes, whatever the clocks say.

Two leases: `leader-<name>` is renewed while its holder lives, `term-<name>` is written only when
the leadership changes hands. A leader's every commit checks the version of its term, so that one
who was paused and does not know yet that another took over can write nothing.
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
from mandor.store.base import Check, Put, SideDoor, Store, Write
from mandor.store.fence import FencedStore
from mandor.store.upkeep import LOST_SHARE, Upkeep

log = logging.getLogger(__name__)

Work = Callable[[Store], Awaitable[None]]
GIVE_BACK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A lease as it was first seen, and when, on our own clock."""

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
        side_door: SideDoor | None = None,
    ) -> None:
        """With a side door the lease is renewed beside the event loop: see `Upkeep`."""
        self._store = store
        self._door = side_door
        self._name = name
        self._holder = holder
        self._seconds = seconds
        self._clock = clock
        self._address = address
        self._lease_key = Key(Lease.kind, "", f"leader-{name}")
        self._term_key = Key(Lease.kind, "", f"term-{name}")
        self._sighting: _Sighting | None = None
        self.leading = False

    async def run(self, work: Work) -> None:
        """Wait for the leadership, do the work while it lasts, and again; return when the work is done."""
        while True:
            try:
                term = await self._win()
            except MandorError as error:
                log.warning("%s: cannot see who leads: %s", self._name, error)
                await self._clock.sleep(self._pause)
                continue
            if await self._lead(work, term):
                return

    @property
    def _pause(self) -> float:
        return self._seconds / 5

    # Before.

    async def _win(self) -> int:
        """Wait until the leadership is free, and take it; the version of the new term."""
        while True:
            lease = await self._read(self._lease_key)
            if self._free(lease):
                # A conflict: somebody was faster. Look again, whose it is.
                with suppress(Conflict):
                    return await self._take(lease)
            await self._clock.sleep(self._pause)

    async def _read(self, key: Key) -> Lease | None:
        found = await self._store.get(key)
        return found if isinstance(found, Lease) else None

    def _free(self, lease: Lease | None) -> bool:
        """Absent, given back, or unchanged for as long as it says, on our own clock since we first saw it so."""
        if lease is None or not lease.spec.holder:
            return True
        now = self._clock.monotonic()
        if self._sighting is None or self._sighting.version != lease.meta.version:
            self._sighting = _Sighting(lease.meta.version, now)
        return now - self._sighting.at >= lease.spec.seconds

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

    # While it lasts.

    async def _lead(self, work: Work, term: int) -> bool:
        """Do the work until it ends (True) or the leadership does."""
        log.info("%s: %s leads, term %d", self._name, self._holder, term)
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
                await self._give_back(term)
        if keeping.done() and not keeping.cancelled():
            keeping.result()  # A bug in keeping is nobody's leadership lost.
        if not deposed or not _expected(working):
            working.result()
        if deposed:
            log.warning("%s: %s leads no more, term %d", self._name, self._holder, term)
        return over and not deposed

    async def _keep(self, term: int) -> None:
        """Renew the lease; return when it is lost, or when it could be by now."""
        if self._door is not None:
            door = self._door
            await Upkeep(self._name, lambda most: self._renew_by(door, term, most), self._seconds, self._pause).run()
            return
        renewed = self._clock.monotonic()
        while True:
            await self._clock.sleep(self._pause)
            begun = self._clock.monotonic()
            try:
                await self._renew(term)
                renewed = begun
            except Conflict as error:
                log.warning("%s: another one leads: %s", self._name, error)
                return
            except MandorError as error:
                log.warning("%s: cannot renew the lease: %s", self._name, error)
                # The others count from when they saw the last renewal, which was later than it began.
                if self._clock.monotonic() - renewed >= self._seconds * LOST_SHARE:
                    return

    async def _renew(self, term: int) -> None:
        writes = self._renewal(await self._read(self._lease_key), term)
        if not writes:
            raise Conflict("the lease is not ours any more")
        await self._store.commit(*writes)

    def _renew_by(self, door: SideDoor, term: int, most_seconds: float) -> bool:
        """In a thread. What a conflict means the next try sees: its cause may be a renewal whose answer never came."""
        lease = door.get(self._lease_key, most_seconds)
        writes = self._renewal(lease if isinstance(lease, Lease) else None, term)
        if not writes:
            log.warning("%s: another one leads", self._name)
            return False
        door.commit(*writes, seconds=most_seconds)
        return True

    def _renewal(self, lease: Lease | None, term: int) -> Sequence[Write]:
        """Nothing if the lease is not ours any more."""
        if lease is None or lease.spec.holder != self._holder:
            return ()
        renewed = self._lease(self._lease_key, lease, self._holder, renewals=lease.spec.renewals + 1)
        return Put(renewed), Check(self._term_key, term)

    async def _give_back(self, term: int) -> None:
        """So that the next leader need not wait for the lease to run out."""
        try:
            async with asyncio.timeout(GIVE_BACK_SECONDS):
                lease = await self._read(self._lease_key)
                if lease is not None and lease.spec.holder == self._holder:
                    free = self._lease(self._lease_key, lease, "", renewals=0)
                    await self._store.commit(Put(free), Check(self._term_key, term))
        except (MandorError, TimeoutError) as error:
            log.info("%s: the lease was not given back and runs out: %s", self._name, error)


async def _end(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # Looked at here, or by whoever asks for the result.


def _expected(task: "asyncio.Future[None]") -> bool:
    """Whether the work ended as it may when its leadership is lost."""
    return task.cancelled() or _all_ours(task.exception())


def _all_ours(error: BaseException | None) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_all_ours(each) for each in error.exceptions)
    return error is None or isinstance(error, MandorError | asyncio.CancelledError)
