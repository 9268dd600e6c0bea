"""The feeder: what is stored and not done goes to the queue, whoever was down when it was stored."""

import asyncio
import logging
from collections.abc import Sequence
from itertools import islice

from mandor.baremetal.queue import TaskQueue
from mandor.errors import MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.tasks import Background
from mandor.model.vm_task import VmTask
from mandor.store.base import Change
from mandor.store.mirror import Mirror

log = logging.getLogger(__name__)

TOGETHER = 256
"""So many are published together, and confirmed together."""
AT_ONCE = 4
"""So many times so many are on their way."""
BACKOFF = Backoff(first_seconds=0.5, most_seconds=15.0, jitter=0.3)


class Feeder:
    def __init__(self, tasks: Mirror, queue: TaskQueue, clock: Clock) -> None:
        self._queue, self._clock = queue, clock
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()
        tasks.listen(self._heard)

    def _heard(self, changes: Sequence[Change]) -> None:
        """A new one, or one that this process sees for the first time."""
        for change in changes:
            if change.before is None and isinstance(change.after, VmTask):
                self.offer(change.after)

    def offer(self, task: VmTask) -> None:
        if task.status.state in {"Queued", "Processing"}:
            self._due[f"{task.meta.namespace}/{task.meta.name}"] = None
            self._wake.set()

    async def run(self) -> None:
        """For ever."""
        async with Background() as tasks:
            for number in range(AT_ONCE):
                tasks.start(self._publish(), f"feeder {number}")
            await tasks.wait()

    async def _publish(self) -> None:
        failures = 0
        while True:
            while not self._due:
                self._wake.clear()
                await self._wake.wait()
            names = list(islice(self._due, TOGETHER))
            for name in names:
                del self._due[name]
            try:
                await self._queue.publish(*names)
                failures = 0
            except MandorError as error:
                self._due.update(dict.fromkeys(names))
                failures += 1
                log.warning("%d tasks wait for the queue: %s", len(self._due), error)
                await self._clock.sleep(BACKOFF.pause(failures))
