"""Tasks through a real RabbitMQ, which is stopped, killed and started again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from operator import methodcaller
from pathlib import Path
from uuid import uuid4

import aio_pika
import pytest
from aio_pika import DeliveryMode, ExchangeType
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aiormq.exceptions import ChannelPreconditionFailed

from mandor.baremetal.feeder import QueueFeeder
from mandor.baremetal.in_process import InProcessQueue
from mandor.baremetal.queue import VmRequestQueue
from mandor.baremetal.rabbitmq import DEAD, RabbitQueue
from mandor.baremetal.settings import VmRequestSettings
from mandor.baremetal.worker import Worker
from mandor.lib.clock import SystemClock
from mandor.lib.delay import Delay
from mandor.lib.tasks import Background
from mandor.model.instance import Instance
from mandor.model.meta import Meta
from mandor.model.record import Event
from mandor.model.vm_request import VmRequest, VmRequestSpec
from mandor.scheduler.loop import Scheduler
from mandor.store.base import Put, Store
from mandor.store.memory import MemoryStore
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder
from mandor.testing.task_queue import TaskQueueSuite
from scripts.components import find
from tests.components.rabbitmq import RabbitMq
from tests.scenarios.make import make_node

GIB = 1024**3
SECONDS = 120.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    epmd = find("rabbitmq", "epmd")
    assert epmd is not None
    made = RabbitMq(epmd, tmp_path_factory.mktemp("rabbitmq"))
    made.start()
    yield made
    made.stop()


class TestInProcessQueue(TaskQueueSuite):
    @pytest.fixture
    def queue(self) -> VmRequestQueue:
        return InProcessQueue(SystemClock())


async def connected(queue: RabbitQueue) -> None:
    async with asyncio.timeout(SECONDS):
        while queue.trouble:
            await asyncio.sleep(0.05)


@pytest.mark.real("rabbitmq")
class TestRabbitQueue(TaskQueueSuite):
    @pytest.fixture
    async def queue(self, broker: RabbitMq) -> AsyncIterator[VmRequestQueue]:
        async with RabbitQueue(broker.url, prefix=f"test.{uuid4()}") as queue:
            await connected(queue)
            yield queue


def task(name: str, cpu: int = 1) -> VmRequest:
    return VmRequest(meta=Meta(name=name, namespace="default"), spec=VmRequestSpec(cpu=cpu, memory_mib=16))


async def tasks_of(store: Store) -> list[VmRequest]:
    return [each for each in (await store.list(VmRequest.kind)).items if isinstance(each, VmRequest)]


async def until_placed(store: Store, count: int) -> list[VmRequest]:
    async with asyncio.timeout(SECONDS):
        while True:
            found = await tasks_of(store)
            if sum(each.status.state == "Placed" for each in found) == count:
                return found
            await asyncio.sleep(0.1)


async def start(stack: AsyncExitStack, store: Store, url: str, *, workers: int = 2) -> list[RabbitQueue]:
    """A scheduler, a feeder, and some workers, each with a connection of its own."""
    clock, prefix = SystemClock(), f"test.{uuid4()}"
    tasks = Mirror(store, VmRequest.kind)
    queues = [await stack.enter_async_context(RabbitQueue(url, prefix=prefix, prefetch=8)) for _ in range(workers + 1)]
    feeder = QueueFeeder(tasks, queues[0], clock)
    await stack.enter_async_context(tasks)
    background = await stack.enter_async_context(Background())
    recorder = Recorder(store, "tasks", clock)
    settings = VmRequestSettings(pause=Delay(first_seconds=0.1, most_seconds=0.5))
    background.start(Scheduler(store, clock, Recorder(store, "scheduler", clock)).run())
    background.start(feeder.run())
    for queue in queues[1:]:
        background.start(Worker(store, clock, queue, recorder, settings).run())
    return queues


@pytest.mark.real("rabbitmq")
@pytest.mark.req("S4-19")
@pytest.mark.req("S4-21")
@pytest.mark.req("S4-22")
async def test_a_broker_that_dies_and_comes_back_loses_no_task_and_runs_none_twice(tmp_path: Path) -> None:
    epmd = find("rabbitmq", "epmd")
    assert epmd is not None
    broker = RabbitMq(epmd, tmp_path / "rabbitmq")
    async with MemoryStore() as store, AsyncExitStack() as stack:
        for index in range(4):
            await store.commit(Put(make_node(f"bm-{index}", cpu=100, memory=100 * GIB)))
        queues = await start(stack, store, broker.url)  # it is down: that is said, and tried again
        async with asyncio.timeout(SECONDS):
            while "tried again" not in queues[0].trouble:
                await asyncio.sleep(0.05)
        await store.commit(*(Put(task(f"early-{number}")) for number in range(20)))
        try:
            await asyncio.to_thread(broker.start)
            await until_placed(store, 20)
            for round_, end in enumerate((broker.stop, broker.kill)):
                adding = [Put(task(f"t{round_}-{number}")) for number in range(90)]
                await store.commit(*adding[:45])
                await asyncio.to_thread(end)
                await store.commit(*adding[45:])
                await asyncio.to_thread(broker.start)
                await until_placed(store, 20 + 90 * (round_ + 1))
        finally:
            await asyncio.to_thread(broker.kill)
        found = await tasks_of(store)
        claims = [each for each in (await store.list(Instance.kind)).items if isinstance(each, Instance)]
        assert Counter(each.meta.name for each in claims) == Counter(f"vm-{each.meta.name}" for each in found)
        assert all(sum(step.state == "Placed" for step in each.status.history) == 1 for each in found)


@pytest.mark.real("rabbitmq")
@pytest.mark.req("S4-24")
@pytest.mark.req("S4-25")
async def test_what_fails_for_good_lies_in_the_dead_letter_queue(broker: RabbitMq) -> None:
    async with MemoryStore() as store, AsyncExitStack() as stack:
        await store.commit(Put(make_node("bm-0", cpu=4)))
        queues = await start(stack, store, broker.url, workers=1)
        await store.commit(Put(task("huge", cpu=1000)))
        async with asyncio.timeout(SECONDS):
            while [each.status.state for each in await tasks_of(store)] != ["Failed"]:
                await asyncio.sleep(0.1)
            failed = (await tasks_of(store))[0]
            assert failed.status.attempts == 4
            events = [each for each in (await store.list(Event.kind)).items if isinstance(each, Event)]
            told = [each for each in events if each.spec.reason == "TaskFailed"]
            assert [each.meta.version for each in told] == [failed.meta.version], "it is told in the same commit"
            connection = await aio_pika.connect(broker.url)
            async with connection:
                channel = await connection.channel()
                dead = await channel.get_queue(f"{queues[0]._prefix}.dead")
                while (message := await dead.get(fail=False)) is None:
                    await asyncio.sleep(0.1)
                assert (message.body, message.routing_key) == (b"default/huge", DEAD)
                await message.ack()


async def refuses(broker: RabbitMq, declare: Callable[[AbstractChannel], Awaitable[object]]) -> bool:
    """Return whether the broker refuses the declaration, because the thing exists with other properties."""
    connection = await aio_pika.connect(broker.url)
    async with connection:
        try:
            await declare(await connection.channel())
        except ChannelPreconditionFailed:
            return True
    return False


QUEUES = ("schedule", "dead", *(f"delay.{number}" for number in range(1, 9)))


@pytest.mark.real("rabbitmq")
@pytest.mark.req("S4-22")
async def test_a_durable_topic_exchange_and_durable_queues_are_declared_at_the_start(broker: RabbitMq) -> None:
    prefix = f"test.{uuid4()}"
    async with RabbitQueue(broker.url, prefix=prefix) as queue:
        await connected(queue)
    fitting = [
        (kind, durable)
        for kind in (ExchangeType.TOPIC, ExchangeType.DIRECT, ExchangeType.FANOUT)
        for durable in (True, False)
        if not await refuses(broker, methodcaller("declare_exchange", prefix, kind, durable=durable))
    ]
    assert fitting == [(ExchangeType.TOPIC, True)]
    for name in QUEUES:
        assert not await refuses(broker, methodcaller("declare_queue", f"{prefix}.{name}", passive=True))
        assert await refuses(broker, methodcaller("declare_queue", f"{prefix}.{name}", durable=False))


@pytest.mark.real("rabbitmq")
@pytest.mark.req("S4-20", "S4-25")
async def test_requests_have_the_routing_key_task_schedule_also_after_a_delay(broker: RabbitMq) -> None:
    """A queue of this test is bound to the exchange with `task.#` and receives a copy of each message."""
    prefix = f"test.{uuid4()}"
    async with RabbitQueue(broker.url, prefix=prefix) as queue, asyncio.timeout(SECONDS):
        await connected(queue)
        connection = await aio_pika.connect(broker.url)
        async with connection:
            channel = await connection.channel()
            copies = await channel.declare_queue(exclusive=True)
            await copies.bind(prefix, "task.#")
            seen: list[AbstractIncomingMessage] = []

            async def keep(message: AbstractIncomingMessage) -> None:
                seen.append(message)

            await copies.consume(keep, no_ack=True)  # at once, because a copy of a delayed message expires, too
            await queue.publish("default/one")
            deliveries = queue.deliveries()
            await (await anext(deliveries)).retry(2, 0.2)
            again = await anext(deliveries)
            assert again.request == "default/one"
            await again.fail("no room")
            while len(seen) < 4:
                await asyncio.sleep(0.02)
    assert [each.routing_key for each in seen] == ["task.schedule", "task.delayed.2", "task.schedule", "task.dead"]
    assert {each.body for each in seen} == {b"default/one"}
    assert {each.delivery_mode for each in seen} == {DeliveryMode.PERSISTENT}
    assert [each.expiration for each in seen[:2]] == [None, 0.2]
    assert seen[3].headers["why"] == "no room"
