"""InProcessQueue: a queue within one process, filled again from the store after a restart."""

from collections.abc import AsyncIterator

from mandor.baremetal.queue import Delivery, VmRequestQueue
from mandor.lib.clock import Clock
from mandor.lib.keyed_queue import KeyedQueue


class InProcessQueue(VmRequestQueue):
    """Holds the names of stored requests, each at most once."""

    def __init__(self, clock: Clock) -> None:
        self._queue: KeyedQueue[str] = KeyedQueue(clock)

    async def publish(self, *requests: str) -> None:
        for request in requests:
            self._queue.add(request)

    async def deliveries(self) -> AsyncIterator[Delivery]:
        while True:
            yield _Delivery(self._queue, await self._queue.get())


class _Delivery(Delivery):
    def __init__(self, queue: KeyedQueue[str], request: str) -> None:
        super().__init__(request)
        self._queue = queue

    async def done(self) -> None:
        self._queue.done(self.request)

    async def retry(self, attempt: int, seconds: float) -> None:
        self._queue.done(self.request)
        self._queue.add_after(self.request, seconds)

    async def fail(self, why: str) -> None:
        self._queue.done(self.request)
