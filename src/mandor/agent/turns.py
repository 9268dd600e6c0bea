"""Turns at starting something: so many at a time, and everybody can see whether anybody is at it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager


class Turns:
    def __init__(self, most: int) -> None:
        self._places = asyncio.Semaphore(most)
        self._wanted = 0
        self.idle = asyncio.Event()
        """Nobody starts anything, and nobody waits to."""
        self.idle.set()

    @asynccontextmanager
    async def take(self, seconds: float) -> AsyncIterator[None]:
        """For so long at most: then it is others' turn, and whoever took it goes on without."""
        self._wanted += 1
        self.idle.clear()
        with ExitStack() as turn:
            turn.callback(self._leave)
            await self._places.acquire()
            turn.callback(self._places.release)
            alarm = asyncio.get_running_loop().call_later(seconds, turn.close)
            turn.callback(alarm.cancel)
            yield

    def _leave(self) -> None:
        self._wanted -= 1
        if not self._wanted:
            self.idle.set()
