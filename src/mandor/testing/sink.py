"""Conformance suite for sinks: subclass `SinkSuite`, define a sink and a reader of received messages."""

import asyncio
from contextlib import AbstractAsyncContextManager

import msgspec
import pytest

from mandor.errors import Unavailable
from mandor.notify.message import Message, synthetic_message
from mandor.notify.sink import Sink


def message(number: int = 1, reason: str = "Started") -> Message:
    return synthetic_message("suite", f"id-{number}", "instance", "web-0", reason, f"message {number}", 1_700_000_000.0)


class SinkSuite:
    keeps_repeats = True
    """False: the receiver itself leaves out what has the same id."""

    @pytest.fixture
    def sink(self) -> Sink:
        raise NotImplementedError("give a fixture that makes the sink, and closes it in the end")

    async def arrived(self) -> list[tuple[str, bytes]]:
        """The ids, as the receiver sees them beside the message, and bodies, in the order of arrival."""
        raise NotImplementedError

    def away(self) -> AbstractAsyncContextManager[None]:
        """The receiver is not there meanwhile."""
        raise NotImplementedError

    async def test_what_was_taken_has_arrived_with_its_id_and_the_same_bytes(self, sink: Sink) -> None:
        assert await sink.send(message())
        assert await self.arrived() == [("id-1", message().body())]
        body = msgspec.json.decode(message().body())
        assert body["specversion"] == "1.0"
        assert body["id"] == "id-1"
        assert body["type"] == "mandor.instance.Started"

    async def test_messages_arrive_in_the_order_in_which_they_were_sent(self, sink: Sink) -> None:
        for number in range(20):
            await sink.send(message(number))
        assert [each for each, _ in await self.arrived()] == [f"id-{number}" for number in range(20)]

    async def test_a_repeat_has_the_same_id(self, sink: Sink) -> None:
        await sink.send(message(1))
        await sink.send(message(1))
        await sink.send(message(2))
        expected = ["id-1", "id-1", "id-2"] if self.keeps_repeats else ["id-1", "id-2"]
        assert [each for each, _ in await self.arrived()] == expected

    async def test_an_unavailable_receiver_gets_all_messages_when_it_returns(self, sink: Sink) -> None:
        await sink.send(message(1))
        async with self.away():
            with pytest.raises(Unavailable):
                await sink.send(message(2))
        for _ in range(240):
            try:
                await sink.send(message(2))
                break
            except Unavailable:
                await asyncio.sleep(0.25)
        else:
            raise AssertionError("it does not come back")
        assert [each for each, _ in await self.arrived()][-1] == "id-2"

    async def test_closing_twice_is_no_error(self, sink: Sink) -> None:
        await sink.send(message())
        await sink.close()
        await sink.close()
