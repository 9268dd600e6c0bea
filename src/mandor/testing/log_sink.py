"""Conformance suite for log sinks: subclass `LogSinkSuite`, define a sink and a reader of received lines."""

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

from mandor.agent.shipping.line import Line
from mandor.agent.shipping.sink import Sink
from mandor.errors import Unavailable

BEGIN = 1_700_000_000.25


def line(number: int = 1, **fields: object) -> Line:
    known = {"text": f"line {number}", "at": BEGIN + number, "stream": "stdout", "node": "n1"}
    known |= {"namespace": "shop", "workload": "web", "instance": "web-0", "task": "main"}
    return Line(**(known | fields))  # type: ignore[arg-type]


class LogSinkSuite:
    awkward = 'quotes " and \\ and ] and "unicode": ä → 日本 \t end'
    sure = True
    """False: its protocol cannot tell that the receiver is away in the moment it goes."""

    @pytest.fixture
    def sink(self) -> Sink:
        raise NotImplementedError("give a fixture that makes the sink, and closes it in the end")

    async def arrived(self, count: int) -> list[Line]:
        """All lines as the receiver has understood them, in the order of arrival, once there are so many; the level
        and the facts need not be there."""
        raise NotImplementedError

    def away(self) -> AbstractAsyncContextManager[None]:
        """The receiver is not there meanwhile; what it had, it still has."""
        raise NotImplementedError

    @pytest.mark.req("S2-40")
    async def test_a_line_arrives_with_its_time_and_all_its_labels(self, sink: Sink) -> None:
        sent = line(1, stream="stderr")
        await sink.send([sent])
        (found,) = await self.arrived(1)
        assert found.labels == sent.labels
        assert found.text == sent.text
        assert abs(found.at - sent.at) < 0.001

    async def test_any_text_arrives_as_it_is(self, sink: Sink) -> None:
        await sink.send([line(1, text=self.awkward), line(2, text=""), line(3, text="x" * 4000)])
        assert [each.text for each in await self.arrived(3)] == [self.awkward, "", "x" * 4000]

    async def test_lines_of_an_instance_arrive_in_order(self, sink: Sink) -> None:
        for start in range(0, 100, 20):
            await sink.send([line(number) for number in range(start, start + 20)])
        assert [each.text for each in await self.arrived(100)] == [f"line {number}" for number in range(100)]

    async def test_lines_of_several_instances_keep_their_names(self, sink: Sink) -> None:
        await sink.send([line(1), line(2, instance="db-1", workload="db"), line(3)])
        found = sorted((each.instance, each.text) for each in await self.arrived(3))
        assert found == [("db-1", "line 2"), ("web-0", "line 1"), ("web-0", "line 3")]

    @pytest.mark.req("S2-40")
    async def test_lines_of_the_agent_arrive_too(self, sink: Sink) -> None:
        await sink.send([Line(at=BEGIN, text="joined", node="n1", stream="agent", level="warning", facts={"a": "b"})])
        (found,) = await self.arrived(1)
        assert (found.node, found.stream, found.instance) == ("n1", "agent", "")
        assert "joined" in found.text

    async def test_an_unavailable_receiver_gets_all_lines_when_it_returns(self, sink: Sink) -> None:
        await sink.send([line(1)])
        await self.arrived(1)
        async with self.away():
            if self.sure:
                with pytest.raises(Unavailable):
                    await sink.send([line(2)])
        for _ in range(240):
            try:
                await sink.send([line(2)])
                break
            except Unavailable:
                await asyncio.sleep(0.05)
        else:
            raise AssertionError("it does not come back")
        assert {each.text for each in await self.arrived(2)} == {"line 1", "line 2"}

    async def test_closing_twice_is_no_error(self, sink: Sink) -> None:
        await sink.send([line()])
        await sink.close()
        await sink.close()
