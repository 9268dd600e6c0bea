"""Mirror: a local read-only copy of one kind, kept by watch."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from mandor.errors import Expired, MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.tasks import Background
from mandor.model.meta import Key, Object
from mandor.store.base import ALL, Change, Filter, KeyTuple, Listing, Store
from mandor.store.list_watch import ListWatch

log = logging.getLogger(__name__)

Listener = Callable[[Sequence[Change]], None]
BACKOFF = Backoff(first_seconds=0.1, most_seconds=5.0, jitter=0.3)
CHUNK = 128
"""Objects of a listing that are copied in one step of the event loop."""
STEP = 128
"""Changes that are applied in one step of the event loop; the listeners' work costs more than the copying."""


class Mirror:
    """Use as an async context manager: the copy is kept up to date until the block ends.

    When the store was unreachable or the watch fell behind, the mirror lists again and calls its listeners with
    the differences; they miss only changes that were undone in between.
    """

    def __init__(self, store: Store, kind: str | None, where: Filter = ALL, *, backoff: Backoff = BACKOFF) -> None:
        self._store = store
        self._kind, self._where = kind, where
        self._backoff = backoff
        self._objects: dict[KeyTuple, Object] = {}
        self._listeners: list[Listener] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._tasks = Background()
        self.revision = 0
        """Revision of the store that the copy shows."""
        self.complete = False
        """Whether a whole listing has been copied; before that, an absent object may exist."""
        self.error: MandorError | None = None
        """Reason why the copy is not up to date; None: it is."""

    # Reading.

    def get(self, key: Key) -> Object | None:
        return self._objects.get(key)

    def items(self) -> Iterable[Object]:
        """Return all objects in no particular order; copy them into a list to keep them across an await."""
        return self._objects.values()

    def __len__(self) -> int:
        return len(self._objects)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each batch of changes after the copy shows it; return a function that ends this.

        A listener that is registered before the block begins also gets the objects of the first listing.
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

    # Keeping it up to date.

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
        follow = ListWatch(self._store, self._kind, self._where, backoff=self._backoff)
        await follow.run(self._take_over, self._take, self._interrupted)

    def _interrupted(self, error: MandorError, failures: int) -> None:
        self.error = error
        if failures > 1 or not isinstance(error, Expired):
            log.warning("the mirror of %s is interrupted: %s", self._kind or "everything", error)

    async def _take(self, batch: Sequence[Change]) -> None:
        self.error = None
        for start in range(0, len(batch), STEP):
            if start:
                await asyncio.sleep(0)
            step = batch[start : start + STEP]
            self._apply([each for each in step if each.after is not None or each.before is not None])
            self.revision = step[-1].revision
            self._release()

    async def _take_over(self, listing: Listing) -> None:
        """Make the copy equal to a listing, and call the listeners with the differences."""
        revision = listing.revision
        known = dict.fromkeys(self._objects)  # in order: what is gone is raised in the same one in any process
        for start in range(0, len(listing.items), CHUNK):
            if start:
                await asyncio.sleep(0)
            items = listing.items[start : start + CHUNK]
            places = listing.key_tuples[start : start + CHUNK] or [tuple(item.key) for item in items]
            self._adopt(items, places, known, revision)
        gone = list(known)
        for start in range(0, len(gone), CHUNK):
            await asyncio.sleep(0)
            self._apply([Change(revision, self._objects[key], None) for key in gone[start : start + CHUNK]])
        self.revision, self.complete = revision, True
        self._release()

    def _adopt(
        self, items: Sequence[Object], places: Sequence[KeyTuple], known: dict[KeyTuple, None], revision: int
    ) -> None:
        new = []
        for item, key in zip(items, places, strict=True):
            known.pop(key, None)
            before = self._objects.get(key)
            if before is None or before.meta.version != item.meta.version or before.meta.uid != item.meta.uid:
                new.append(Change(revision, before, item, None, key))
        self._apply(new)

    def _apply(self, changes: Sequence[Change]) -> None:
        """Apply changes, which must not be bookmarks, and call the listeners."""
        if not changes:
            return
        objects = self._objects
        for change in changes:
            place = change.key_tuple or tuple(change.key)
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
