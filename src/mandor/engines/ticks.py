"""Notifies subscribers that the state of an engine may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from weakref import WeakSet


class Ticks:
    """Pending notifications of a subscriber are merged into one, so that slow subscribers need no queue."""

    def __init__(self) -> None:
        self._listeners: WeakSet[asyncio.Event] = WeakSet()
        self._timer: asyncio.TimerHandle | None = None

    def tick(self) -> None:
        for listener in list(self._listeners):
            listener.set()

    def later(self, seconds: float) -> None:
        """Notify after a delay; only one delayed notification is pending at a time."""
        if self._timer is None and self._listeners:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.tick()

    def stream(self) -> AsyncGenerator[None]:
        """Return a stream of notifications from this call on, not from the first read."""
        news = asyncio.Event()
        self._listeners.add(news)
        return _take(news)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _take(news: asyncio.Event) -> AsyncGenerator[None]:
    while True:
        await news.wait()
        news.clear()
        yield
