"""A simulated connection to a store, with cuts, delays, lost and repeated messages."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from mandor.errors import Conflict, Unavailable
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.store.base import ALL, Change, Filter, Listing, Store, Write

SILENT_SECONDS = 45.0
"""Seconds without messages after which a watch ends."""


class StoreConnection(Store):
    """A store behind a connection that can fail; the store itself can be replaced.

    `late`: a delayed commit arrives even if its sender has been cancelled.
    """

    def __init__(self, store: Store, *, chance: random.Random | None = None, late: bool = False) -> None:
        self.store = store
        self.commits = 0
        self.delay_seconds = 0.0
        """Seconds that every read and commit takes."""
        self.lost_share = 0.0
        """Share of commits that are applied but whose answer is lost."""
        self.dropped_share = 0.0
        """Share of messages that are lost."""
        self.repeated_share = 0.0
        """Share of commits that arrive twice."""
        self._chance = chance or random.Random(0)
        self.whole = True
        self.sends = True
        """False: messages do not arrive; open watches continue."""
        self.hears = True
        """False: messages arrive, but answers do not."""
        self._late = late
        self._under_way: set[asyncio.Task[int]] = set()
        self._waiting: dict[asyncio.Timeout, None] = {}
        """Timeouts of open watches; a cut or lasting silence ends them."""

    def cut(self) -> None:
        self.whole = False
        self._end_watches(0.0)

    def deafen(self) -> None:
        """Drop all answers and changes from now on, without an error."""
        self.hears = False
        self._end_watches(SILENT_SECONDS)

    def _end_watches(self, after: float) -> None:
        for each in list(self._waiting):
            each.reschedule(asyncio.get_running_loop().time() + after)

    def mend(self) -> None:
        """End all faults."""
        if not self.hears:
            self._end_watches(0.0)
        self.whole = self.sends = self.hears = True
        self.delay_seconds = self.lost_share = self.dropped_share = self.repeated_share = 0.0

    async def close(self) -> None:
        for task in list(self._under_way):
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def send(self) -> None:
        """Deliver a message or raise `Unavailable`."""
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        if not self.whole or not self.sends:
            raise Unavailable("the connection is cut")
        if self.dropped_share and self._chance.random() < self.dropped_share:
            raise Unavailable("the message was lost")

    def _answer(self) -> None:
        if not self.hears:
            raise Unavailable("no answer arrives")

    @property
    def clear(self) -> bool:
        """Whether messages arrive at once and are never lost."""
        return self.whole and self.sends and not self.delay_seconds and not self.dropped_share

    async def get(self, key: Key) -> Object | None:
        if not self.clear:
            await self.send()
        self._answer()
        return await self.store.get(key)

    async def get_all(self, keys: Sequence[Key]) -> Sequence[Object | None]:
        if not self.clear:
            await self.send()
        self._answer()
        return await self.store.get_all(keys)

    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        await self.send()
        self._answer()
        return await self.store.list(kind, where)

    async def commit(self, *writes: Write) -> int:
        if not (self._late and self.delay_seconds):
            return await self._commit(writes)
        task = asyncio.ensure_future(self._commit(writes))
        self._under_way.add(task)
        task.add_done_callback(self._arrived)
        return await asyncio.shield(task)

    def _arrived(self, task: asyncio.Task[int]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # the sender may be gone; mark the error as handled

    async def _commit(self, writes: Sequence[Write]) -> int:
        await self.send()
        revision = await self.store.commit(*writes)
        self.commits += 1
        if self.repeated_share and self._chance.random() < self.repeated_share:
            with suppress(Conflict):  # The second commit must have no effect.
                await self.store.commit(*writes)
        if self.lost_share and self._chance.random() < self.lost_share:
            raise Unavailable("the answer was lost: whether it was written is not known")
        self._answer()
        return revision

    def watch(self, kind: str | None, *, since: int, where: Filter = ALL) -> AsyncIterator[Sequence[Change]]:
        return self._watch(self.store, kind, since, where)

    async def _watch(
        self, store: Store, kind: str | None, since: int, where: Filter
    ) -> AsyncIterator[Sequence[Change]]:
        await self.send()
        stream = store.watch(kind, since=since, where=where)
        while store is self.store:
            try:
                async with asyncio.timeout(None if self.hears else SILENT_SECONDS) as until:
                    self._waiting[until] = None
                    result = await anext(stream)
                    if self.delay_seconds:
                        await asyncio.sleep(self.delay_seconds)
                    if not self.hears:  # No message and no error.
                        await asyncio.Event().wait()
            except TimeoutError:
                break
            finally:
                self._waiting.pop(until, None)
            if not self.whole:
                break
            yield await _supplied(store, result) if where.supplies else result
        raise Unavailable("the connection is cut")


async def _supplied(store: Store, changes: Sequence[Change]) -> Sequence[Change]:
    """Return the changes with the objects that their instances need to start, as the API does."""
    found = []
    for change in changes:
        for key in change.after.start_keys if isinstance(change.after, Instance) else ():
            value = await store.get(key)
            if value is not None:
                found.append(Change(change.revision, None, value))
        found.append(change)
    return found
