"""Notifies subscribers that the state of an engine may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from weakref import WeakSet


class ChangeNotifier:
    """Pending notifications of a subscriber are merged into one, so that slow subscribers need no queue."""

    def __init__(self) -> None:
        self._subscribers: WeakSet[asyncio.Event] = WeakSet()
        self._timer: asyncio.TimerHandle | None = None

    def notify(self) -> None:
        for subscriber in list(self._subscribers):
            subscriber.set()

    def notify_later(self, seconds: float) -> None:
        """Notify after a delay; only one delayed notification is pending at a time."""
        if self._timer is None and self._subscribers:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.notify()

    def stream(self) -> AsyncGenerator[None]:
        """Return a stream of notifications from this call on, not from the first read."""
        changed = asyncio.Event()
        self._subscribers.add(changed)
        return _take(changed)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _take(changed: asyncio.Event) -> AsyncGenerator[None]:
    while True:
        await changed.wait()
        changed.clear()
        yield
