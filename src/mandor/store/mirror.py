"""Mirror: a local read-only copy of one kind, kept by watch."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from mandor.errors import Expired, MandorError, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.tasks import Background
from mandor.model.meta import Key, Object
from mandor.store.base import ALL, Change, Filter, Place, Store

log = logging.getLogger(__name__)

Listener = Callable[[Sequence[Change]], None]
BACKOFF = Backoff(first_seconds=0.1, most_seconds=5.0, jitter=0.3)
CHUNK = 128
"""So many objects of a listing are taken over before others get their turn."""
STEP = 128
"""So many changes of a burst are told before others get their turn: what they set off costs more than taking them
over, and there are several mirrors."""


class Mirror:
    """Use as `async with`: the copy is kept until the block ends.

    It outlives an unreachable store and a watch that fell behind: then it lists again, and tells
    its listeners the difference, so that they miss nothing but what came and went in between.
    """

    def __init__(self, store: Store, kind: str | None, where: Filter = ALL, *, backoff: Backoff = BACKOFF) -> None:
        self._store = store
        self._kind, self._where = kind, where
        self._backoff = backoff
        self._objects: dict[Place, Object] = {}
        self._listeners: list[Listener] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._tasks = Background()
        self._failures = 0
        self.revision = 0
        """The copy is the store's state at this revision."""
        self.complete = False
        """A whole listing has been taken over; until then, what is absent may well exist."""
        self.error: MandorError | None = None
        """Why the copy is not being kept just now."""

    # Reading.

    def get(self, key: Key) -> Object | None:
        return self._objects.get(key)

    def items(self) -> Iterable[Object]:
        """All objects, in no particular order; take a list of them to keep it across an await."""
        return self._objects.values()

    def __len__(self) -> int:
        return len(self._objects)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call it with every change from now on, those of a burst together, after the copy shows them; the result
        ends that.

        A listener registered before the block begins also gets what the first listing holds.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def synced(self) -> None:
        """Wait until the copy is complete."""
        await self.reached(0)

    async def reached(self, revision: int) -> None:
        """Wait until the copy is complete and shows this revision, the one of a change to its kind."""
        if self.complete and self.revision >= revision:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, waiter))
        await waiter

    # Keeping it.

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.start(self._keep(), f"mirror of {self._kind or 'everything'}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, waiter in self._waiting:
            waiter.cancel()
        await self._tasks.__aexit__(kind, error, trace)

    async def _keep(self) -> None:
        while True:
            try:
                await self._take_over()
                await self._follow()
                self.error = Unavailable("the watch ended")
            except MandorError as error:
                self.error = error
            self._failures += 1
            if self._failures > 1 or not isinstance(self.error, Expired):
                log.warning("the mirror of %s waits: %s", self._kind or "everything", self.error)
                await asyncio.sleep(self._backoff.pause(self._failures))

    async def _follow(self) -> None:
        async for batch in self._store.watch(self._kind, since=self.revision, where=self._where):
            self.error, self._failures = None, 0
            for start in range(0, len(batch), STEP):
                if start:
                    await asyncio.sleep(0)
                step = batch[start : start + STEP]
                self._apply([each for each in step if each.after is not None or each.before is not None])
                self.revision = step[-1].revision
                self._release()

    async def _take_over(self) -> None:
        """Make the copy equal to a listing, and tell the listeners what that changes."""
        listing = await self._store.list(self._kind, self._where)
        revision = listing.revision
        known = dict.fromkeys(self._objects)  # in order: what is gone is told in the same one in any process
        for start in range(0, len(listing.items), CHUNK):
            if start:
                await asyncio.sleep(0)
            items = listing.items[start : start + CHUNK]
            places = listing.places[start : start + CHUNK] or [tuple(item.key) for item in items]
            self._adopt(items, places, known, revision)
        gone = list(known)
        for start in range(0, len(gone), CHUNK):
            await asyncio.sleep(0)
            self._apply([Change(revision, self._objects[key], None) for key in gone[start : start + CHUNK]])
        self.revision, self.complete = revision, True
        self._release()

    def _adopt(self, items: Sequence[Object], places: Sequence[Place], known: dict[Place, None], revision: int) -> None:
        new = []
        for item, key in zip(items, places, strict=True):
            known.pop(key, None)
            before = self._objects.get(key)
            if before is None or before.meta.version != item.meta.version or before.meta.uid != item.meta.uid:
                new.append(Change(revision, before, item, None, key))
        self._apply(new)

    def _apply(self, changes: Sequence[Change]) -> None:
        """Changes, and no bookmarks."""
        if not changes:
            return
        objects = self._objects
        for change in changes:
            place = change.place or tuple(change.key)
            if change.after is not None:
                objects[place] = change.after
            else:
                objects.pop(place, None)
        for listener in self._listeners:
            listener(changes)

    def _release(self) -> None:
        if not self._waiting:
            return
        still = []
        for revision, waiter in self._waiting:
            if waiter.done():
                continue
            if revision <= self.revision:
                waiter.set_result(None)
            else:
                still.append((revision, waiter))
        self._waiting = still
