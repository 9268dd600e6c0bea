"""ListWatch: lists objects, watches from the listing's revision, and lists again when the watch has expired."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from mandor.errors import Expired, MandorError, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.silence import Silence
from mandor.store.base import ALL, Change, Filter, Listing, Store

Sleep = Callable[[float], Awaitable[None]]
Starting = Callable[[], Awaitable[None]]
Listed = Callable[[Listing], Awaitable[None]]
Changed = Callable[[Sequence[Change]], Awaitable[None]]
Failed = Callable[[MandorError, int], None]


class ListWatch:
    """One consumer of a store's objects; `run` retries after errors until it is cancelled.

    After `Expired` it lists again, at once the first time. After any other error it waits, and lists again, or with
    `resume` continues the watch at the last revision that was handled.
    """

    def __init__(
        self,
        store: Store,
        kind: str | None,
        where: Filter = ALL,
        *,
        backoff: Backoff,
        sleep: Sleep = asyncio.sleep,
        resume: bool = False,
        stall_seconds: float | None = None,
        since: int | None = None,
    ) -> None:
        """`stall_seconds`: a watch without changes and bookmarks for this long has failed. `since`: skip the first
        listing and watch from this revision."""
        self._store, self._kind, self._where = store, kind, where
        self._backoff, self._sleep = backoff, sleep
        self._resume, self._stall_seconds = resume, stall_seconds
        self.revision = since
        """Revision that was handled last; None: the next attempt starts with a listing."""
        self._failures = 0

    async def run(self, listed: Listed, changed: Changed, failed: Failed, starting: Starting | None = None) -> None:
        """Call `listed` and `changed` with the objects, and `failed` with each error and the number of errors in a row.

        `starting` is called at the start of each attempt, and may set `revision` to None.
        """
        while True:
            try:
                if starting is not None:
                    await starting()
                if self.revision is None:
                    listing = await self._store.list(self._kind, self._where)
                    await listed(listing)
                    self.revision = listing.revision
                await self._watch(self.revision, changed)
                raise Unavailable("the watch ended")
            except MandorError as error:
                self._failures += 1
                if isinstance(error, Expired) or not self._resume:
                    self.revision = None
                failed(error, self._failures)
                if self._failures > 1 or not isinstance(error, Expired):
                    await self._sleep(self._backoff.pause(self._failures))

    async def _watch(self, since: int, changed: Changed) -> None:
        stream = self._store.watch(self._kind, since=since, where=self._where)
        try:
            if self._stall_seconds is None:
                async for batch in stream:
                    await self._handle(batch, changed)
                return
            async with Silence(self._stall_seconds) as silence:
                async for batch in stream:
                    silence.broken()
                    await self._handle(batch, changed)
        except TimeoutError:
            if self._stall_seconds is None:
                raise
            raise Unavailable(f"the watch delivered nothing for {self._stall_seconds:g} s") from None
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    async def _handle(self, batch: Sequence[Change], changed: Changed) -> None:
        await changed(batch)
        self.revision = batch[-1].revision
        self._failures = 0
