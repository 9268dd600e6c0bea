"""Turns at starting something: so many at a time, and everybody can see whether anybody is at it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    def __init__(self, most: int) -> None:
        self._places = asyncio.Semaphore(most)
        self._wanted = 0
        self.idle = asyncio.Event()
        """Nobody starts anything, and nobody waits to."""
        self.idle.set()

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        self._wanted += 1
        self.idle.clear()
        try:
            async with self._places:
                yield
        finally:
            self._wanted -= 1
            if not self._wanted:
                self.idle.set()
