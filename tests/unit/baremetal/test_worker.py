"""The worker: how often and after which delays a request is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from statistics import mean

import pytest

from mandor.baremetal.queue import Delivery, VmRequestQueue
from mandor.baremetal.settings import VmRequestSettings
from mandor.baremetal.worker import Worker
from mandor.lib.clock import SystemClock
from mandor.lib.delay import Delay
from mandor.lib.tasks import Background
from mandor.model.instance import Instance
from mandor.model.meta import Meta
from mandor.model.vm_request import VmRequest, VmRequestSpec
from mandor.roots.settings import ServerSettings
from mandor.roots.tasks import task_settings
from mandor.scheduler.loop import Scheduler
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.store.recorder import Recorder
from tests.scenarios.make import make_node

REQUESTS = 24


@dataclass
class RecordingQueue(VmRequestQueue):
    """Delivers each request again at once, and keeps the delay that the worker asked for."""

    waiting: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    delays: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    async def publish(self, *requests: str) -> None:
        for each in requests:
            self.waiting.put_nowait(each)

    async def deliveries(self) -> AsyncIterator[Delivery]:
        while True:
            yield RecordingDelivery(await self.waiting.get(), self)


class RecordingDelivery(Delivery):
    def __init__(self, request: str, queue: RecordingQueue) -> None:
        super().__init__(request)
        self._queue = queue

    async def done(self) -> None:
        return

    async def retry(self, attempt: int, seconds: float) -> None:
        self._queue.delays.setdefault(self.request, []).append((attempt, seconds))
        # The worker drops a request that is delivered while it still has it.
        asyncio.get_running_loop().call_later(0.02, self._queue.waiting.put_nowait, self.request)

    async def fail(self, why: str) -> None:
        self._queue.failed.append(self.request)


async def refused(settings: VmRequestSettings) -> RecordingQueue:
    """Process requests that fit on no machine until all have failed."""
    queue, clock = RecordingQueue(), SystemClock()
    async with MemoryStore() as store, Background() as background:
        await store.commit(Put(make_node("bm-0", cpu=1)))
        names = [f"t{number}" for number in range(REQUESTS)]
        spec = VmRequestSpec(cpu=64, memory_mib=16)
        await store.commit(*(Put(VmRequest(meta=Meta(name=name, namespace="default"), spec=spec)) for name in names))
        await queue.publish(*(f"default/{name}" for name in names))
        background.start(Scheduler(store, clock, Recorder(store, "scheduler", clock)).run())
        background.start(Worker(store, clock, queue, Recorder(store, "tasks", clock), settings).run())
        async with asyncio.timeout(120):
            while len(queue.failed) < REQUESTS:
                await asyncio.sleep(0.02)
        stored = [each for each in (await store.list(VmRequest.kind)).items if isinstance(each, VmRequest)]
        assert {(each.status.state, each.status.attempts) for each in stored} == {("Failed", settings.attempts)}
        assert not (await store.list(Instance.kind)).items
    assert sorted(queue.failed) == sorted(queue.delays), "each request fails once"
    return queue


@pytest.mark.req("S4-45")
async def test_a_request_is_tried_four_times_with_growing_delays_and_jitter() -> None:
    """The settings are those of a server without any configuration."""
    queue = await refused(task_settings(ServerSettings()))
    for number, expected in ((0, 1.0), (1, 2.0), (2, 4.0)):
        attempts, seconds = zip(*(each[number] for each in queue.delays.values()), strict=True)
        assert set(attempts) == {number + 1}
        assert 0.7 * expected <= min(seconds) < max(seconds) <= 1.3 * expected
        assert len(set(seconds)) > REQUESTS // 2, "the delays of simultaneous requests differ"
        assert mean(seconds) == pytest.approx(expected, rel=0.2)
    assert {len(each) for each in queue.delays.values()} == {3}, "the fourth attempt is the last"


@pytest.mark.req("S4-24", "S4-45")
async def test_the_number_of_attempts_and_the_longest_delay_are_settings() -> None:
    queue = await refused(VmRequestSettings(attempts=6, pause=Delay(first_seconds=1.0, most_seconds=3.0), jitter=0.0))
    assert set(map(tuple, queue.delays.values())) == {((1, 1.0), (2, 2.0), (3, 3.0), (4, 3.0), (5, 3.0))}
