"""The queue in RabbitMQ: durable, confirmed, shared by the workers of all servers.

A topic exchange and durable queues are declared at the start. A task is a persistent message with the routing key
`task.schedule`, published with confirms and acknowledged by hand. One that is to come again waits in a delay queue,
one for each number of tries, whose messages expire back into the exchange; one that failed for good lies in the
dead-letter queue. While the broker is away, nothing is lost: the store has the tasks, and what is published or taken
twice does no harm.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, cast

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractExchange
from aiormq import Channel, spec
from aiormq.abc import DeliveredMessage
from aiormq.exceptions import AMQPError

from mandor.baremetal.queue import Delivery, TaskQueue
from mandor.errors import MandorError, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.tasks import Background

log = logging.getLogger(__name__)

EXCHANGE = "mandor.tasks"
SCHEDULE = "schedule"
ROUTING_KEY = "task.schedule"
DELAYED = "task.delayed"
DEAD = "task.dead"
DELAYS_MOST = 8
"""So many delay queues: later tries wait in the last one."""
ANSWER_SECONDS = 15.0
CLOSE_SECONDS = 3.0
GATHER_SECONDS = 0.01
"""What is done within this time is acknowledged together."""
BACKOFF = Backoff(first_seconds=0.5, most_seconds=15.0, jitter=0.3)
TROUBLE = (AMQPError, OSError, asyncio.TimeoutError, RuntimeError)
"""What a broker that goes away makes of a call: `RuntimeError` for a channel that is closed by now."""


class RabbitQueue(TaskQueue):
    def __init__(self, url: str, *, prefetch: int = 512, prefix: str = EXCHANGE) -> None:
        self._url, self._prefetch, self._prefix = url, prefetch, prefix
        self._tasks = Background()
        self._channel: Channel | None = None
        self._answers = _Answers()
        self._inbox: asyncio.Queue[Delivery] = asyncio.Queue()
        self._consuming = False
        self._trouble = "the broker has not been reached yet"

    @property
    def trouble(self) -> str:
        return f"RabbitMQ: {self._trouble}" if self._trouble else ""

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.start(self._keep(), "rabbitmq")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.__aexit__(kind, error, trace)

    async def publish(self, *tasks: str) -> None:
        await self.send(tasks, ROUTING_KEY)

    async def send(self, tasks: Sequence[str], routing_key: str, seconds: float | None = None, why: str = "") -> None:
        """Confirmed by the broker when this returns: all are sent, and then their confirms are waited for."""
        channel = self._channel
        if channel is None:
            raise Unavailable(self.trouble or "RabbitMQ: not connected")
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                sending = (
                    channel.basic_publish(
                        task.encode(),
                        exchange=self._prefix,
                        routing_key=routing_key,
                        properties=_properties(task, seconds, why),
                        mandatory=True,
                        wait=False,
                    )
                    for task in tasks
                )
                await asyncio.gather(*sending)
        except (*TROUBLE, asyncio.CancelledError) as error:
            _raise_if_ended()
            raise Unavailable(f"RabbitMQ did not take a task: {str(error) or type(error).__name__}") from error

    async def deliveries(self) -> AsyncIterator[Delivery]:
        self._consuming = True
        if self._channel is not None:
            with suppress(*TROUBLE):  # then the next connection consumes
                await self._consume(self._channel, self._answers)
        while True:
            yield await self._inbox.get()

    # Keeping the connection.

    async def _keep(self) -> None:
        failures = 0
        while True:
            try:
                await self._connected()
                failures = 0
            except (*TROUBLE, asyncio.CancelledError) as error:
                _raise_if_ended()
                failures += 1
                self._trouble = f"{str(error) or type(error).__name__}; it is tried again"
                log.warning("%s", self.trouble)
            if failures:
                await asyncio.sleep(BACKOFF.pause(failures))

    async def _connected(self) -> None:
        """Until the connection is lost."""
        async with asyncio.timeout(ANSWER_SECONDS):
            connection = await aio_pika.connect(self._url)
        answers = _Answers()
        try:
            connection.close_callbacks.add(answers.end)
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._open(connection, answers)
            self._trouble = ""
            await self._acknowledge(answers)
            self._trouble = "the connection was lost"
        finally:
            self._channel = None
            with suppress(*TROUBLE):
                async with asyncio.timeout(CLOSE_SECONDS):  # a broker that was killed does not say goodbye
                    await connection.close()

    async def _open(self, connection: aio_pika.abc.AbstractConnection, answers: "_Answers") -> None:
        channel = await connection.channel(publisher_confirms=True)
        channel.close_callbacks.add(answers.end)
        await channel.set_qos(prefetch_count=self._prefetch)
        exchange = await channel.declare_exchange(self._prefix, aio_pika.ExchangeType.TOPIC, durable=True)
        await self._declare(channel, exchange, SCHEDULE, ROUTING_KEY)
        await self._declare(channel, exchange, "dead", DEAD)
        back = {"x-dead-letter-exchange": self._prefix, "x-dead-letter-routing-key": ROUTING_KEY}
        for number in range(1, DELAYS_MOST + 1):
            await self._declare(channel, exchange, f"delay.{number}", f"{DELAYED}.{number}", back)
        # What goes back and forth for each task does so without the objects that the library makes of it.
        self._answers, self._channel = answers, cast("Channel", await channel.get_underlay_channel())
        if self._consuming:
            await self._consume(self._channel, answers)

    async def _consume(self, channel: Channel, answers: "_Answers") -> None:
        async def received(message: DeliveredMessage) -> None:
            delivery = message.delivery
            assert isinstance(delivery, spec.Basic.Deliver)
            assert delivery.delivery_tag is not None
            self._inbox.put_nowait(_Delivery(self, answers, delivery.delivery_tag, message.body))

        await channel.basic_consume(f"{self._prefix}.{SCHEDULE}", received, no_ack=False)

    async def _acknowledge(self, answers: "_Answers") -> None:
        """Until the connection is lost."""
        while not answers.over:
            await answers.wake.wait()
            await asyncio.sleep(GATHER_SECONDS)
            with suppress(*TROUBLE):  # it is lost, and they come again
                for tag, multiple in answers.taken():
                    assert self._channel is not None
                    await self._channel.basic_ack(tag, multiple=multiple, wait=False)

    async def _declare(
        self,
        channel: AbstractChannel,
        exchange: AbstractExchange,
        name: str,
        routing_key: str,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        queue = await channel.declare_queue(f"{self._prefix}.{name}", durable=True, arguments=arguments)
        await queue.bind(exchange, routing_key)


def _properties(task: str, seconds: float | None, why: str) -> spec.Basic.Properties:
    return spec.Basic.Properties(
        message_id=task,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        expiration=None if seconds is None else str(round(seconds * 1000)),
        headers={"why": why[:500]} if why else None,
    )


def _raise_if_ended() -> None:
    """The library cancels what waits on a connection that is lost; whoever really ends us has asked for that."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class _Answers:
    """What was delivered over one connection, and has been answered since."""

    def __init__(self) -> None:
        self._open: dict[int, None] = {}
        self._done: list[int] = []
        self.wake = asyncio.Event()
        self.over = False

    def end(self, *_: object) -> None:
        """What has not been acknowledged by now comes again."""
        self.over = True
        self.wake.set()

    def expect(self, tag: int) -> None:
        self._open[tag] = None

    def done(self, tag: int) -> None:
        self._open.pop(tag, None)
        self._done.append(tag)
        self.wake.set()

    def taken(self) -> list[tuple[int, bool]]:
        """Tags to acknowledge, and whether all before them are meant, too: whoever came first is mostly done first."""
        done, self._done = self._done, []
        self.wake.clear()
        if self.over:
            return []
        oldest = next(iter(self._open), None)
        below = [tag for tag in done if oldest is None or tag < oldest]
        single = [(tag, False) for tag in done if oldest is not None and tag > oldest]
        return [(max(below), True), *single] if below else single


class _Delivery(Delivery):
    """Acknowledged only after what comes next is with the broker: between the two it can come twice, never not."""

    def __init__(self, queue: RabbitQueue, answers: _Answers, tag: int, body: bytes) -> None:
        super().__init__(body.decode(errors="replace"))
        self._queue, self._answers, self._tag = queue, answers, tag
        answers.expect(tag)

    async def done(self) -> None:
        self._answers.done(self._tag)

    async def again(self, attempt: int, seconds: float) -> None:
        number = min(max(attempt, 1), DELAYS_MOST)
        await self._pass_on(f"{DELAYED}.{number}", seconds=seconds)

    async def bury(self, why: str) -> None:
        await self._pass_on(DEAD, why=why)

    async def _pass_on(self, routing_key: str, seconds: float | None = None, why: str = "") -> None:
        try:
            await self._queue.send([self.task], routing_key, seconds, why)
        except MandorError as error:
            log.info("task %s comes again, for it was not acknowledged: %s", self.task, error)
            return
        await self.done()
