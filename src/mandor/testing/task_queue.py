"""Conformance suite for task queues. Subclass it, define a `queue` fixture, run pytest."""

import asyncio
from collections.abc import AsyncIterator

from mandor.baremetal.queue import Delivery, VmRequestQueue

PATIENCE_SECONDS = 60.0


async def take(deliveries: AsyncIterator[Delivery]) -> Delivery:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await anext(deliveries)


class TaskQueueSuite:
    async def test_what_is_published_is_delivered_once(self, queue: VmRequestQueue) -> None:
        deliveries = queue.deliveries()
        names = {f"default/t{number}" for number in range(20)}
        first = asyncio.ensure_future(take(deliveries))
        for name in names:
            await queue.publish(name)
        found = [await first, *[await take(deliveries) for _ in range(19)]]
        for each in found:
            await each.done()
        assert sorted(each.request for each in found) == sorted(names)

    async def test_what_is_to_come_again_comes_later(self, queue: VmRequestQueue) -> None:
        deliveries = queue.deliveries()
        waiting = asyncio.ensure_future(take(deliveries))
        await queue.publish("default/t1")
        await (await waiting).retry(1, 0.2)
        again = await take(deliveries)
        assert again.request == "default/t1"
        await again.done()

    async def test_what_is_buried_does_not_come_again(self, queue: VmRequestQueue) -> None:
        deliveries = queue.deliveries()
        waiting = asyncio.ensure_future(take(deliveries))
        await queue.publish("default/bad")
        await (await waiting).fail("no room")
        await queue.publish("default/good")
        good = await take(deliveries)
        assert good.request == "default/good"
        await good.done()

    async def test_a_queue_that_works_is_in_no_trouble(self, queue: VmRequestQueue) -> None:
        assert queue.trouble == ""
