"""Lists and watches over an `Index`, for stores that keep the whole state in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial

from mandor.lib.steps import chosen
from mandor.lib.turns import in_turns
from mandor.model.meta import Object
from mandor.store.base import ALL, Change, Filter, Listing
from mandor.store.idle_timers import IdleTimer
from mandor.store.index import Index, Subscription

BOOKMARK_SECONDS = 10.0  # without a change, then a watcher receives a bookmark
LABELLED = 3
"""Cost of comparing one object with a label selector, in steps of `lib.steps`."""


class Watch(AsyncIterator[Sequence[Change]]):
    """One watcher. Its first batch comes at once: the changes since `since`, and a bookmark."""

    def __init__(
        self, index: Index, kind: str | None, since: int, where: Filter, *, bookmark_seconds: float = BOOKMARK_SECONDS
    ) -> None:
        self._index = index
        self._kind, self._since, self._where = kind, since, where
        self._bookmark_seconds = bookmark_seconds
        self._subscription: Subscription | None = None
        self._idle_timer: IdleTimer | None = None
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

    def on_idle(self, deliver: Callable[[Change], bool]) -> None:
        """Call `deliver` instead of waking the watcher when a bookmark is due and nothing else happened.

        `deliver` returns whether it delivered the bookmark; if not, the watcher is woken.
        """
        assert self._subscription is not None, "the watch has not started"
        index = self._index
        self._subscription.on_idle = lambda: deliver(index.bookmark)

    async def _wait(self, subscription: Subscription) -> None:
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()

        def go_on() -> None:
            if not waiter.done():
                waiter.set_result(None)

        # Thousands of watchers may watch a single node each: a burst wakes them a few at a time.
        subscription.wake = partial(self._index.node_wakeups.add, go_on) if self._where.node else go_on
        if self._idle_timer is None:
            # The timer refers to the subscription only, so that an abandoned watch can be collected.
            self._idle_timer = self._index.idle_timers.add(subscription.fire, self._bookmark_seconds)
        self._idle_timer.since = loop.time()
        try:
            await waiter
        finally:
            subscription.wake = None

    async def aclose(self) -> None:
        subscription = self._subscription
        self._end()
        if subscription is not None:
            subscription.wake_up()

    def _end(self) -> None:
        self._over = True
        if self._subscription is not None:
            self._index.unsubscribe(self._subscription)
            self._subscription.on_idle = None
        if self._idle_timer is not None:
            self._index.idle_timers.drop(self._idle_timer)

    def __del__(self) -> None:
        # An abandoned watch must not fill its buffer.
        if not self._over:
            self._end()


async def list_index(index: Index, kind: str | None, where: Filter = ALL) -> Listing:
    """Return a listing of one revision; the event loop runs other tasks while it is built."""
    if kind is not None and where is ALL and (latest := index.latest(kind)) is not None:
        return Listing(latest, index.revision, index.key_tuples(kind))
    await in_turns(index.refresh(kind, where))
    revision, items = index.revision, index.snapshot(kind, where)
    if where.node == "":
        items = await in_turns(chosen(items, lambda piece: [item for item in piece if not item.node]))
    if where.labels:
        wanted = where.labels.items()
        items = await in_turns(
            chosen(items, lambda piece: [item for item in piece if _labelled(item, wanted)], each=LABELLED)
        )
    return Listing(items, revision, index.key_tuples(kind) if kind is not None and where is ALL else ())


def _labelled(item: Object, wanted: Iterable[tuple[str, str]]) -> bool:
    labels = item.labels
    return all(labels.get(key) == value for key, value in wanted)
