"""An idle timeout: ends a block with `TimeoutError` when no progress is reported for a time."""

import asyncio
from types import TracebackType
from typing import Self

SOON_SECONDS = 0.001
"""Seconds left of a wait that are ignored, because timers may fire a little early."""


class Silence:
    """Like an `asyncio.timeout` around each wait, with one timer for all of them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        await self._until.__aenter__()
        self.broken()
        self._alarm = self._loop.call_later(self._seconds, self._ring)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._alarm.cancel()
        await self._until.__aexit__(kind, error, trace)

    def broken(self) -> None:
        """Report progress."""
        self._heard = self._loop.time()

    def _ring(self) -> None:
        left = self._heard + self._seconds - self._loop.time()
        if left > SOON_SECONDS:
            self._alarm = self._loop.call_later(left, self._ring)
        else:
            self._until.reschedule(self._loop.time())
