"""The worker: takes tasks from the queue, has the scheduler place their claims, and writes down what came of it."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from mandor.baremetal.failure import failure_of
from mandor.baremetal.queue import Delivery, TaskQueue
from mandor.baremetal.settings import TaskSettings
from mandor.baremetal.task_plan import Verdict, address_of, begun, placed, refused, verdict
from mandor.errors import Conflict, MandorError, NotFound
from mandor.lib.clock import Clock
from mandor.lib.tasks import Background
from mandor.model.claim import LABELS
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.vm_task import VmTask
from mandor.store.base import Change, Filter, Put, Store, Write
from mandor.store.batching import BatchingStore
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder
from mandor.store.tasks import change_task, read_task, task_key

log = logging.getLogger(__name__)

CLAIMS = Filter(labels=LABELS)
NO_ANSWER = Verdict("", "the scheduler did not answer")


Crowded = Callable[[], bool]
"""Whether others in this process have a crowd waiting."""
ROUND = 64
"""So many tasks are begun before it is looked again whether others have a crowd waiting."""
COURTESY_SECONDS = 5.0
"""So long it waits for a crowd; what it has waited comes back as it works, so that at worst it waits half the time."""
LOOK_SECONDS = 0.01
WAVE_SECONDS = 0.5
"""So long it waits for half of its hands."""


def nobody_waits() -> bool:
    return False


class Worker:
    """Several of them, in several processes, may take from the same queue: what is true stands in the store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        queue: TaskQueue,
        recorder: Recorder,
        settings: TaskSettings | None = None,
        crowded: Crowded = nobody_waits,
    ) -> None:
        self._store = BatchingStore(store)
        """Steps of several tasks at the same moment are written together."""
        self._clock, self._queue, self._recorder = clock, queue, recorder
        self._settings = settings or TaskSettings()
        self._claims = Mirror(store, Instance.kind, CLAIMS)
        self._waiting: dict[Key, asyncio.Future[Verdict]] = {}
        self._in_hand: set[str] = set()
        self._crowded = crowded
        self._courtesy, self._looked_at = COURTESY_SECONDS, clock.monotonic()
        self._enough, self._eased = 0, asyncio.Event()

    async def run(self) -> None:
        """For ever."""
        self._claims.listen(self._heard)
        async with self._claims, Background() as tasks:
            await self._claims.synced()
            taken = 0
            async for delivery in self._queue.deliveries():
                taken += 1
                if taken % ROUND == 0:
                    await self._let_others_pass()
                if delivery.task in self._in_hand:
                    await delivery.done()  # it came again while somebody here works on it
                    continue
                if len(self._in_hand) >= self._settings.workers:
                    await self._wave()
                self._in_hand.add(delivery.task)
                tasks.start(self._handle(delivery), delivery.task)

    async def _wave(self) -> None:
        """Until half of the hands are free: what many do at the same moment is written, decided and bound together,
        and costs a fraction. After a while one free hand is enough: some may wait long."""
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
        """A burst is taken in first, and placed then: who asks waits for an answer, who has asked looks later."""
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
            log.warning("task %s waits: %s", delivery.task, error, extra={"facts": error.facts})
            await delivery.again(0, self._settings.pause.pause(1))
        finally:
            self._in_hand.discard(delivery.task)
            if len(self._in_hand) <= self._enough:
                self._eased.set()

    async def _work(self, delivery: Delivery) -> None:
        namespace, _, name = delivery.task.partition("/")
        try:
            task = await read_task(self._store, task_key(name, namespace))
        except NotFound:
            await delivery.done()
            return
        if task.status.state == "Queued":
            task = await self._begin(task)
        if task.status.state != "Processing":
            await delivery.done()  # somebody else has done it, or called it off
            return
        await self._decide(delivery, task, await self._verdict(task))

    async def _begin(self, task: VmTask) -> VmTask:
        after = begun(task, self._clock.now())
        writes: list[Write] = [Put(after)]
        if await self._store.get(task.claim_key) is None:
            writes.append(Put(task.claim))
        try:
            revision = await self._store.commit(*writes)
        except Conflict:
            return await read_task(self._store, task.key)
        return after.stamped(version=revision)

    async def _verdict(self, task: VmTask) -> Verdict:
        key = task.claim_key
        known = self._claims.get(key)
        found = verdict(known) if isinstance(known, Instance) else None
        if found is not None:
            return found
        waiter: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting[key] = waiter
        alarm = self._clock.alarm(self._settings.verdict_seconds, lambda: _tell(waiter, NO_ANSWER))
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
            found = verdict(after) if isinstance(after, Instance) else Verdict("", "its claim was taken away")
            if found is not None:
                _tell(waiter, found)

    async def _decide(self, delivery: Delivery, task: VmTask, found: Verdict) -> None:
        if found.node:
            node = await self._store.get(Key(Node.kind, "", found.node))
            address = address_of(node if isinstance(node, Node) else None)
            await self._write(task, placed(task, found.node, address, self._clock.now()), free=False)
            await delivery.done()
            return
        after = await self._write(task, refused(task, found.why, self._settings, self._clock.now()), free=True)
        if after is None:
            await delivery.done()
        elif after.status.state == "Queued":
            tries = after.status.attempts
            await delivery.again(tries, self._settings.pause.pause(tries))
        else:
            log.warning("task %s failed after %d tries: %s", delivery.task, after.status.attempts, found.why)
            await delivery.bury(found.why)

    async def _write(self, before: VmTask, after: VmTask, *, free: bool) -> VmTask | None:
        """None: somebody else was faster, and what there is to do is his."""

        def unless_moved(now: VmTask) -> VmTask:
            return after if now.meta.version == before.meta.version else now

        written = await change_task(
            self._store, before.key, unless_moved, free=free, first=before, tell=partial(failure_of, self._recorder)
        )
        return written if written.status == after.status else None


def _tell(waiter: "asyncio.Future[Verdict]", found: Verdict) -> None:
    if not waiter.done():
        waiter.set_result(found)
