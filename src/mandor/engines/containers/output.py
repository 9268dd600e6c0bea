"""Bounded queue for the output of a command, from the connection to the reader."""

from __future__ import annotations

import asyncio

QUEUED_MOST = 64


class Output:
    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue(QUEUED_MOST)

    async def put(self, stream: str, data: bytes) -> None:
        await self._queue.put((stream, data))

    async def end(self) -> None:
        await self._queue.put(None)

    async def read(self) -> tuple[str, bytes] | None:
        found = await self._queue.get()
        if found is None:
            self._queue.put_nowait(None)  # For the next call.
        return found

    def drop(self) -> None:
        """Discard the queued output: the reader gets the end at once."""
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(None)
