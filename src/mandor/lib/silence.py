"""A bound on silence: whoever waits for one thing after the other gives up when nothing comes for so long."""

import asyncio
from types import TracebackType
from typing import Self

SOON_SECONDS = 0.001
"""What is left of the wait when a timer rings a little early is not waited for."""


class Silence:
    """As an `asyncio.timeout` around each wait, at the price of one for all of them; it ends with `TimeoutError`."""

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
        """Something came."""
        self._heard = self._loop.time()

    def _ring(self) -> None:
        left = self._heard + self._seconds - self._loop.time()
        if left > SOON_SECONDS:
            self._alarm = self._loop.call_later(left, self._ring)
        else:
            self._until.reschedule(self._loop.time())
