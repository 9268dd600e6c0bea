"""The queue inside one process: tasks in the store are what it is filled with again after a restart."""

from collections.abc import AsyncIterator

from mandor.baremetal.queue import Delivery, TaskQueue
from mandor.lib.clock import Clock
from mandor.lib.keyed_queue import KeyedQueue


class InProcessQueue(TaskQueue):
    """As long as the store is: it holds names of tasks that are stored, each once."""

    def __init__(self, clock: Clock) -> None:
        self._queue: KeyedQueue[str] = KeyedQueue(clock)

    async def publish(self, *tasks: str) -> None:
        for task in tasks:
            self._queue.add(task)

    async def deliveries(self) -> AsyncIterator[Delivery]:
        while True:
            yield _Delivery(self._queue, await self._queue.get())


class _Delivery(Delivery):
    def __init__(self, queue: KeyedQueue[str], task: str) -> None:
        super().__init__(task)
        self._queue = queue

    async def done(self) -> None:
        self._queue.done(self.task)

    async def again(self, attempt: int, seconds: float) -> None:
        self._queue.done(self.task)
        self._queue.add_after(self.task, seconds)

    async def bury(self, why: str) -> None:
        self._queue.done(self.task)
