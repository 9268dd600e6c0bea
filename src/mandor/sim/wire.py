"""The way from somebody to the store, and what can happen on it: cuts, delays, lost answers, repeated messages."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from mandor.errors import Conflict, Unavailable
from mandor.model.meta import Key, Object
from mandor.store.base import ALL, Change, Filter, Listing, Store, Write


class Wire(Store):
    """The store as one party reaches it. The store behind it may be exchanged."""

    def __init__(self, store: Store, *, chance: random.Random | None = None) -> None:
        self.store = store
        self.commits = 0
        self.delay_seconds = 0.0
        """So long every question and every commit is under way."""
        self.lost_share = 0.0
        """Of so many commits the answer is lost: the writer cannot know whether they happened, and they did."""
        self.repeated_share = 0.0
        """So many commits arrive twice."""
        self._chance = chance or random.Random(0)
        self.whole = True
        self._waiting: dict[asyncio.Timeout, None] = {}
        """Whoever waits for changes: a cut ends that."""

    def cut(self) -> None:
        self.whole = False
        for each in list(self._waiting):
            each.reschedule(asyncio.get_running_loop().time())

    def mend(self) -> None:
        self.whole = True

    async def _pass(self) -> None:
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)
        if not self.whole:
            raise Unavailable("the wire is cut")

    async def get(self, key: Key) -> Object | None:
        await self._pass()
        return await self.store.get(key)

    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        await self._pass()
        return await self.store.list(kind, where)

    async def commit(self, *writes: Write) -> int:
        await self._pass()
        revision = await self.store.commit(*writes)
        self.commits += 1
        if self.repeated_share and self._chance.random() < self.repeated_share:
            with suppress(Conflict):  # What a store is for: the second one has no effect, and nobody hears of it.
                await self.store.commit(*writes)
        if self.lost_share and self._chance.random() < self.lost_share:
            raise Unavailable("the answer was lost: whether it was written is not known")
        return revision

    def watch(self, kind: str | None, *, since: int, where: Filter = ALL) -> AsyncIterator[Sequence[Change]]:
        return self._watch(self.store, kind, since, where)

    async def _watch(
        self, store: Store, kind: str | None, since: int, where: Filter
    ) -> AsyncIterator[Sequence[Change]]:
        await self._pass()
        stream = store.watch(kind, since=since, where=where)
        while store is self.store:
            try:
                async with asyncio.timeout(None) as until:
                    self._waiting[until] = None
                    result = await anext(stream)
            except TimeoutError:
                break
            finally:
                self._waiting.pop(until, None)
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            if not self.whole:
                break
            yield result
        raise Unavailable("the wire is cut")
