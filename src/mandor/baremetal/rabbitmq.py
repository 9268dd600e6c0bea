"""RabbitQueue: a durable, confirmed queue in RabbitMQ, shared by the workers of all servers.

A topic exchange and durable queues are declared at the start. A request is a persistent message with the routing key
`task.schedule`, published with confirms and acknowledged by hand. One that is to come again waits in a delay queue,
one for each number of tries, whose messages expire back into the exchange; one that failed for good lies in the
dead-letter queue. While the broker is away, nothing is lost: the store has the requests, and what is published or taken
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

from mandor.baremetal.queue import Delivery, VmRequestQueue
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
"""Number of delay queues; later attempts use the last one."""
ANSWER_SECONDS = 15.0
CLOSE_SECONDS = 3.0
GATHER_SECONDS = 0.01
"""Seconds in which answers are collected into one acknowledgement."""
BACKOFF = Backoff(first_seconds=0.5, most_seconds=15.0, jitter=0.3)
TROUBLE = (AMQPError, OSError, asyncio.TimeoutError, RuntimeError)
"""Errors of calls while the broker is unreachable; `RuntimeError` means a closed channel."""


class RabbitQueue(VmRequestQueue):
    def __init__(self, url: str, *, prefetch: int = 512, prefix: str = EXCHANGE) -> None:
        self._url, self._prefetch, self._prefix = url, prefetch, prefix
        self._background = Background()
        self._channel: Channel | None = None
        self._answers = _Answers()
        self._inbox: asyncio.Queue[Delivery] = asyncio.Queue()
        self._consuming = False
        self._trouble = "not connected yet"

    @property
    def trouble(self) -> str:
        return f"RabbitMQ: {self._trouble}" if self._trouble else ""

    async def __aenter__(self) -> Self:
        await self._background.__aenter__()
        self._background.start(self._keep(), "rabbitmq")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._background.__aexit__(kind, error, trace)

    async def publish(self, *requests: str) -> None:
        await self.send(requests, ROUTING_KEY)

    async def send(
        self, requests: Sequence[str], routing_key: str, seconds: float | None = None, why: str = ""
    ) -> None:
        """Publish and wait until the broker has confirmed all messages."""
        channel = self._channel
        if channel is None:
            raise Unavailable(self.trouble or "RabbitMQ: not connected")
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                sending = (
                    channel.basic_publish(
                        request.encode(),
                        exchange=self._prefix,
                        routing_key=routing_key,
                        properties=_properties(request, seconds, why),
                        mandatory=True,
                        wait=False,
                    )
                    for request in requests
                )
                await asyncio.gather(*sending)
        except (*TROUBLE, asyncio.CancelledError) as error:
            _raise_if_ended()
            raise Unavailable(f"RabbitMQ did not accept a task: {str(error) or type(error).__name__}") from error

    async def deliveries(self) -> AsyncIterator[Delivery]:
        self._consuming = True
        if self._channel is not None:
            with suppress(*TROUBLE):  # consuming starts with the next connection
                await self._consume(self._channel, self._answers)
        while True:
            yield await self._inbox.get()

    # The connection.

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
        """Serve the connection until it is lost."""
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
                async with asyncio.timeout(CLOSE_SECONDS):  # a broker that was killed does not answer
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
        # Messages are handled on the low-level channel, which avoids the library's object per message.
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
        """Acknowledge answers until the connection is lost."""
        while not answers.over:
            await answers.wake.wait()
            await asyncio.sleep(GATHER_SECONDS)
            with suppress(*TROUBLE):  # the connection is lost, and the broker delivers them again
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


def _properties(request: str, seconds: float | None, why: str) -> spec.Basic.Properties:
    return spec.Basic.Properties(
        message_id=request,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        expiration=None if seconds is None else str(round(seconds * 1000)),
        headers={"why": why[:500]} if why else None,
    )


def _raise_if_ended() -> None:
    """Raise if this task is really cancelled: the library also cancels waits on a lost connection."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class _Answers:
    """Deliveries of one connection and which of them are answered."""

    def __init__(self) -> None:
        self._open: dict[int, None] = {}
        self._done: list[int] = []
        self.wake = asyncio.Event()
        self.over = False

    def end(self, *_: object) -> None:
        """Mark the connection as lost: the broker delivers unacknowledged messages again."""
        self.over = True
        self.wake.set()

    def expect(self, tag: int) -> None:
        self._open[tag] = None

    def done(self, tag: int) -> None:
        self._open.pop(tag, None)
        self._done.append(tag)
        self.wake.set()

    def taken(self) -> list[tuple[int, bool]]:
        """Return tags to acknowledge, each with whether it includes all earlier ones."""
        done, self._done = self._done, []
        self.wake.clear()
        if self.over:
            return []
        oldest = next(iter(self._open), None)
        below = [tag for tag in done if oldest is None or tag < oldest]
        single = [(tag, False) for tag in done if oldest is not None and tag > oldest]
        return [(max(below), True), *single] if below else single


class _Delivery(Delivery):
    """Acknowledged only after the follow-up message is confirmed: it may be delivered twice, but is never lost."""

    def __init__(self, queue: RabbitQueue, answers: _Answers, tag: int, body: bytes) -> None:
        super().__init__(body.decode(errors="replace"))
        self._queue, self._answers, self._tag = queue, answers, tag
        answers.expect(tag)

    async def done(self) -> None:
        self._answers.done(self._tag)

    async def retry(self, attempt: int, seconds: float) -> None:
        number = min(max(attempt, 1), DELAYS_MOST)
        await self._pass_on(f"{DELAYED}.{number}", seconds=seconds)

    async def fail(self, why: str) -> None:
        await self._pass_on(DEAD, why=why)

    async def _pass_on(self, routing_key: str, seconds: float | None = None, why: str = "") -> None:
        try:
            await self._queue.send([self.request], routing_key, seconds, why)
        except MandorError as error:
            log.info("VM request %s is delivered again, because it was not acknowledged: %s", self.request, error)
            return
        await self.done()
