"""BatchQueue: items in memory that wait to be sent, bounded by count and bytes; the oldest are dropped first."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from mandor.lib.clock import Clock, wait_event

T = TypeVar("T")


class BatchQueue(Generic[T]):
    """A source of a BatchSender. Items of the batch that is being sent count towards the bounds and are not dropped."""

    def __init__(
        self,
        clock: Clock,
        size: Callable[[T], int],
        *,
        most_items: int,
        most_bytes: int,
        batch_items: int,
        batch_bytes: int,
        linger_seconds: float,
    ) -> None:
        """`size`: bytes of an item; `linger_seconds`: longest wait for a batch to become full."""
        self._clock, self._size, self._linger_seconds = clock, size, linger_seconds
        self._most_items, self._most_bytes = most_items, most_bytes
        self._batch_items, self._batch_bytes = batch_items, batch_bytes
        self._waiting: deque[tuple[T, int]] = deque()
        self._waiting_bytes = 0
        self._sending: list[T] = []
        self._sending_bytes = 0
        self._wake = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._sending)

    @property
    def bytes(self) -> int:
        return self._waiting_bytes + self._sending_bytes

    def put(self, item: T) -> int:
        """Add an item without waiting; return the number of items that were dropped for want of room."""
        size, dropped = self._size(item), 0
        if len(self._sending) >= self._most_items or self._sending_bytes + size > self._most_bytes:
            return 1
        while len(self) >= self._most_items or self.bytes + size > self._most_bytes:
            self._waiting_bytes -= self._waiting.popleft()[1]
            dropped += 1
        self._waiting.append((item, size))
        self._waiting_bytes += size
        if len(self._waiting) == 1 or self._is_full():
            self._wake.set()
        return dropped

    async def next(self) -> Sequence[T] | None:
        if not self._sending:
            while not self._waiting and not self._closed:
                self._wake.clear()
                await self._wake.wait()
            if not self._is_full() and not self._closed:
                self._wake.clear()
                await wait_event(self._clock, self._linger_seconds, self._wake)
            begin = self._waiting_bytes
            self._sending = self.take(self._batch_items, self._batch_bytes)
            self._sending_bytes = begin - self._waiting_bytes
        return self._sending or None

    async def done(self, batch: Sequence[T]) -> None:
        self._sending, self._sending_bytes = [], 0

    def take(self, most_items: int, most_bytes: int | None = None) -> list[T]:
        """Remove and return the oldest waiting items: at least one, then as many as the limits allow."""
        taken: list[T] = []
        size = 0
        while self._waiting and len(taken) < most_items:
            size += self._waiting[0][1]
            if taken and most_bytes is not None and size > most_bytes:
                break
            item, item_bytes = self._waiting.popleft()
            self._waiting_bytes -= item_bytes
            taken.append(item)
        return taken

    def close(self) -> None:
        """Let `next` return the remaining items without delay, then None."""
        self._closed = True
        self._wake.set()

    def _is_full(self) -> bool:
        return len(self._waiting) >= self._batch_items or self._waiting_bytes >= self._batch_bytes
