"""Watches and lists over an Index, for stores that live in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial

from mandor.lib.steps import chosen, in_turns
from mandor.model.meta import Object
from mandor.store.base import ALL, Change, Filter, Listing
from mandor.store.index import Index, Subscription
from mandor.store.reminders import Reminder

BOOKMARK_SECONDS = 10.0
LABELLED = 3
"""Looks that comparing an object with a selector takes."""


class Watch(AsyncIterator[Sequence[Change]]):
    """One watcher. The first batch comes at once: what it missed, and a bookmark."""

    def __init__(
        self, index: Index, kind: str | None, since: int, where: Filter, *, bookmark_seconds: float = BOOKMARK_SECONDS
    ) -> None:
        self._index = index
        self._kind, self._since, self._where = kind, since, where
        self._bookmark_seconds = bookmark_seconds
        self._subscription: Subscription | None = None
        self._reminder: Reminder | None = None
        self._over = False

    async def __anext__(self) -> Sequence[Change]:
        if self._over:
            raise StopAsyncIteration
        subscription = self._subscription
        try:
            if subscription is None:
                subscription = self._subscription = self._index.subscribe(self._kind, self._since, self._where)
                return [*subscription.take(), self._index.bookmark]
            if not subscription.ready:
                await self._wait(subscription)
            if self._over:
                raise StopAsyncIteration
            return subscription.take() or [self._index.bookmark]
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._end()
            raise

    def while_quiet(self, tell: Callable[[Change], bool]) -> None:
        """Until the watch is closed a bookmark that nothing came before is told to this one, and nobody who waits is
        woken; it says whether that was possible."""
        assert self._subscription is not None, "it has not begun"
        index = self._index
        self._subscription.quiet = lambda: tell(index.bookmark)

    async def _wait(self, subscription: Subscription) -> None:
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()

        def go_on() -> None:
            if not waiter.done():
                waiter.set_result(None)

        # Those who look at one node are thousands: a burst reaches them a few at a time.
        subscription.wake = partial(self._index.near.add, go_on) if self._where.node else go_on
        if self._reminder is None:
            # It knows the subscription alone, so that a watcher that is dropped is collected.
            self._reminder = self._index.reminders.add(subscription.remind, self._bookmark_seconds)
        self._reminder.since = loop.time()
        try:
            await waiter
        finally:
            subscription.wake = None

    async def aclose(self) -> None:
        subscription = self._subscription
        self._end()
        if subscription is not None:
            subscription.rouse()

    def _end(self) -> None:
        self._over = True
        if self._subscription is not None:
            self._index.unsubscribe(self._subscription)
            self._subscription.quiet = None
        if self._reminder is not None:
            self._index.reminders.drop(self._reminder)

    def __del__(self) -> None:
        # A watcher that is simply dropped must not fill its buffer for ever.
        if not self._over:
            self._end()


async def list_index(index: Index, kind: str | None, where: Filter = ALL) -> Listing:
    """A listing of one revision; others have their turn while it is made."""
    if kind is not None and where is ALL and (latest := index.latest(kind)) is not None:
        return Listing(latest, index.revision, index.places(kind))
    await in_turns(index.refresh(kind, where))
    revision, items = index.revision, index.snapshot(kind, where)
    if where.node == "":
        items = await in_turns(chosen(items, lambda piece: [item for item in piece if not item.node]))
    if where.labels:
        wanted = where.labels.items()
        items = await in_turns(
            chosen(items, lambda piece: [item for item in piece if _labelled(item, wanted)], each=LABELLED)
        )
    return Listing(items, revision, index.places(kind) if kind is not None and where is ALL else ())


def _labelled(item: Object, wanted: Iterable[tuple[str, str]]) -> bool:
    labels = item.labels
    return all(labels.get(key) == value for key, value in wanted)
