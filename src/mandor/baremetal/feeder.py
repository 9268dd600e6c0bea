"""QueueFeeder: publishes stored requests that are not done to the queue, also after outages of the queue."""

import asyncio
import logging
from collections.abc import Sequence
from itertools import islice

from mandor.baremetal.queue import VmRequestQueue
from mandor.errors import MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.tasks import Background
from mandor.model.vm_request import VmRequest
from mandor.store.base import Change
from mandor.store.mirror import Mirror

log = logging.getLogger(__name__)

TOGETHER = 256
"""Requests per publish call."""
AT_ONCE = 4
"""Publish calls in flight."""
BACKOFF = Backoff(first_seconds=0.5, most_seconds=15.0, jitter=0.3)


class QueueFeeder:
    def __init__(self, requests: Mirror, queue: VmRequestQueue, clock: Clock) -> None:
        self._queue, self._clock = queue, clock
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()
        requests.listen(self._heard)

    def _heard(self, changes: Sequence[Change]) -> None:
        """Offer new requests, and all requests when this process first sees them."""
        for change in changes:
            if change.before is None and isinstance(change.after, VmRequest):
                self.offer(change.after)

    def offer(self, request: VmRequest) -> None:
        if request.status.state in {"Queued", "Processing"}:
            self._due[f"{request.meta.namespace}/{request.meta.name}"] = None
            self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        async with Background() as background:
            for number in range(AT_ONCE):
                background.start(self._publish(), f"feeder {number}")
            await background.wait()

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
                log.warning("%d requests wait for the queue: %s", len(self._due), error)
                await self._clock.sleep(BACKOFF.pause(failures))
