"""Tells everybody who listens that there may be news."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator


class Ticks:
    """News that nobody took yet is one piece of news: a slow listener costs nothing."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Event] = set()
        self._timer: asyncio.TimerHandle | None = None

    def tick(self) -> None:
        for listener in self._listeners:
            listener.set()

    def later(self, seconds: float) -> None:
        """Tick once after a while; at most one such tick is under way."""
        if self._timer is None and self._listeners:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.tick()

    async def stream(self) -> AsyncGenerator[None]:
        news = asyncio.Event()
        self._listeners.add(news)
        try:
            while True:
                await news.wait()
                news.clear()
                yield
        finally:
            self._listeners.discard(news)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
