"""The worker: takes requests from the queue, has the scheduler place their claims, and writes the results."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from mandor.baremetal.queue import Delivery, VmRequestQueue
from mandor.baremetal.request_change import change_request, read_request, request_key
from mandor.baremetal.request_event import event_of
from mandor.baremetal.request_plan import ClaimResult, address_of, begun, claim_result, placed, refused
from mandor.baremetal.settings import VmRequestSettings
from mandor.errors import Conflict, MandorError, NotFound
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.tasks import Background
from mandor.model.claim import LABELS
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.vm_request import VmRequest
from mandor.store.base import Change, Filter, Put, Store, Write
from mandor.store.batching import BatchingStore
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

CLAIMS = Filter(labels=LABELS)
NO_ANSWER = ClaimResult("", "the scheduler did not answer")


Crowded = Callable[[], bool]
"""Returns whether many API requests wait in this process."""
ROUND = 64
"""Requests that are started between two calls of `crowded`."""
COURTESY_SECONDS = 5.0
"""Longest wait for API requests, in seconds; the allowance refills while requests are processed."""
LOOK_SECONDS = 0.01
WAVE_SECONDS = 0.5
"""Seconds to wait until half of the concurrent requests are done."""


def never_crowded() -> bool:
    return False


class Worker:
    """Several workers, in several processes, may take from the same queue; the store holds the state."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        queue: VmRequestQueue,
        recorder: Recorder,
        settings: VmRequestSettings | None = None,
        crowded: Crowded = never_crowded,
    ) -> None:
        self._store = BatchingStore(store)
        """Combines simultaneous commits of several requests."""
        self._clock, self._queue, self._recorder = clock, queue, recorder
        self._settings = settings or VmRequestSettings()
        delay = self._settings.pause
        self._pause = Backoff(delay.first_seconds, delay.most_seconds, self._settings.jitter)
        self._claims = Mirror(store, Instance.kind, CLAIMS)
        self._waiting: dict[Key, asyncio.Future[ClaimResult]] = {}
        self._in_hand: set[str] = set()
        self._crowded = crowded
        self._courtesy, self._looked_at = COURTESY_SECONDS, clock.monotonic()
        self._enough, self._eased = 0, asyncio.Event()

    async def run(self) -> None:
        """Process requests until cancelled."""
        self._claims.listen(self._heard)
        async with self._claims, Background() as background:
            await self._claims.synced()
            taken = 0
            async for delivery in self._queue.deliveries():
                taken += 1
                if taken % ROUND == 0:
                    await self._let_others_pass()
                if delivery.request in self._in_hand:
                    await delivery.done()  # delivered again while this process works on it
                    continue
                if len(self._in_hand) >= self._settings.workers:
                    await self._wave()
                self._in_hand.add(delivery.request)
                background.start(self._handle(delivery), delivery.request)

    async def _wave(self) -> None:
        """Wait until half of the concurrent requests are done, because simultaneous requests are written, decided and
        bound together at a fraction of the cost. After a while, one finished request is enough."""
        self._enough = self._settings.workers // 2
        self._eased.clear()
        alarm = self._clock.alarm(WAVE_SECONDS, self._hurry)
        try:
            await self._eased.wait()
        finally:
            alarm.cancel()

    def _hurry(self) -> None:
        self._enough = self._settings.workers - 1
        if len(self._in_hand) <= self._enough:
            self._eased.set()

    async def _let_others_pass(self) -> None:
        """Wait while many API requests are waiting: accepting a burst of requests has precedence over placing them."""
        now = self._clock.monotonic()
        self._courtesy = min(COURTESY_SECONDS, self._courtesy + now - self._looked_at)
        while self._crowded() and self._courtesy > 0:
            await self._clock.sleep(LOOK_SECONDS)
            self._courtesy -= LOOK_SECONDS
        self._looked_at = self._clock.monotonic()

    async def _handle(self, delivery: Delivery) -> None:
        try:
            await self._work(delivery)
        except MandorError as error:
            log.warning("VM request %s is retried later: %s", delivery.request, error, extra={"facts": error.facts})
            await delivery.retry(0, self._pause.pause(1))
        finally:
            self._in_hand.discard(delivery.request)
            if len(self._in_hand) <= self._enough:
                self._eased.set()

    async def _work(self, delivery: Delivery) -> None:
        namespace, _, name = delivery.request.partition("/")
        try:
            request = await read_request(self._store, request_key(name, namespace))
        except NotFound:
            await delivery.done()
            return
        if request.status.state == "Queued":
            request = await self._begin(request)
        if request.status.state != "Processing":
            await delivery.done()  # another worker has processed it, or it was cancelled
            return
        await self._decide(delivery, request, await self._claim_result(request))

    async def _begin(self, request: VmRequest) -> VmRequest:
        after = begun(request, self._clock.now())
        writes: list[Write] = [Put(after)]
        if await self._store.get(request.claim_key) is None:
            writes.append(Put(request.claim))
        try:
            revision = await self._store.commit(*writes)
        except Conflict:
            return await read_request(self._store, request.key)
        return after.stamped(version=revision)

    async def _claim_result(self, request: VmRequest) -> ClaimResult:
        key = request.claim_key
        known = self._claims.get(key)
        found = claim_result(known) if isinstance(known, Instance) else None
        if found is not None:
            return found
        waiter: asyncio.Future[ClaimResult] = asyncio.get_running_loop().create_future()
        self._waiting[key] = waiter
        alarm = self._clock.alarm(self._settings.verdict_seconds, lambda: _set_result(waiter, NO_ANSWER))
        try:
            return await waiter
        finally:
            alarm.cancel()
            del self._waiting[key]

    def _heard(self, changes: Sequence[Change]) -> None:
        for change in changes:
            waiter = self._waiting.get(change.key)
            if waiter is None:
                continue
            after = change.after
            found = claim_result(after) if isinstance(after, Instance) else ClaimResult("", "the claim was deleted")
            if found is not None:
                _set_result(waiter, found)

    async def _decide(self, delivery: Delivery, request: VmRequest, found: ClaimResult) -> None:
        if found.node:
            node = await self._store.get(Key(Node.kind, "", found.node))
            address = address_of(node if isinstance(node, Node) else None)
            await self._write(request, placed(request, found.node, address, self._clock.now()), free=False)
            await delivery.done()
            return
        after = await self._write(request, refused(request, found.why, self._settings, self._clock.now()), free=True)
        if after is None:
            await delivery.done()
        elif after.status.state == "Queued":
            tries = after.status.attempts
            await delivery.retry(tries, self._pause.pause(tries))
        else:
            log.warning("VM request %s failed in %d attempts: %s", delivery.request, after.status.attempts, found.why)
            await delivery.fail(found.why)

    async def _write(self, before: VmRequest, after: VmRequest, *, free: bool) -> VmRequest | None:
        """Return the written request; None if another writer was faster, who then continues."""

        def unless_moved(now: VmRequest) -> VmRequest:
            return after if now.meta.version == before.meta.version else now

        written = await change_request(
            self._store, before.key, unless_moved, free=free, first=before, event=partial(event_of, self._recorder)
        )
        return written if written.status == after.status else None


def _set_result(waiter: "asyncio.Future[ClaimResult]", found: ClaimResult) -> None:
    if not waiter.done():
        waiter.set_result(found)
