"""The delivery of one log sink: errors of the sink, of its configuration and of the disk delay lines and lose none."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from mandor.agent.shipping.delivery import SinkDelivery
from mandor.agent.shipping.line import Line
from mandor.agent.shipping.sink import Sink
from mandor.errors import Unavailable
from mandor.lib.clock import ManualClock, settle
from mandor.lib.metrics import Counts
from mandor.model.log_sink import LogSink, LogSinkSpec
from mandor.model.meta import Meta

SINK = LogSink(meta=Meta(name="loki"), spec=LogSinkSpec(url="loki+http://localhost:3100"))


class Taking(Sink):
    def __init__(self, lines: list[str]) -> None:
        self.lines, self.down = lines, False

    async def send(self, lines: Sequence[Line]) -> None:
        if self.down:
            raise Unavailable("down")
        self.lines += [each.text for each in lines]

    async def close(self) -> None:
        self.down = True


async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


def make_delivery(folder: Path, clock: ManualClock, open_sink: Callable[[LogSink], Sink]) -> SinkDelivery:
    return SinkDelivery(SINK, folder, clock, at_once, open_sink, lambda: None, Counts())


async def offer(delivery: SinkDelivery, clock: ManualClock, *texts: str) -> None:
    for text in texts:
        delivery.offer(Line(at=clock.now(), text=text, node="n1", stream="stdout"), "")
    await delivery.flush()
    await settle()


@asynccontextmanager
async def running(delivery: SinkDelivery) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(delivery.run())
    try:
        await settle()
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_sink_that_cannot_be_opened_is_reported_and_tried_again(tmp_path: Path) -> None:
    clock, taken, errors = ManualClock(), list[str](), [Unavailable("no such file of certificates", hint="create it")]

    def open_sink(sink: LogSink) -> Sink:
        if errors:
            raise errors.pop()
        return Taking(taken)

    delivery = make_delivery(tmp_path / "loki", clock, open_sink)
    async with running(delivery):
        await offer(delivery, clock, "1")
        assert delivery.health().message == "no such file of certificates (create it)"
        await clock.advance(2)
        assert taken == ["1"]
        assert delivery.health().state == "Serving"


async def test_a_changed_sink_is_opened_anew_and_tried_at_once(tmp_path: Path) -> None:
    clock, taken, opened = ManualClock(), list[str](), list[Taking]()

    def open_sink(sink: LogSink) -> Sink:
        opened.append(Taking(taken))
        opened[-1].down = len(opened) == 1
        return opened[-1]

    delivery = make_delivery(tmp_path / "loki", clock, open_sink)
    async with running(delivery):
        await offer(delivery, clock, "1")
        await clock.advance(300)
        assert (delivery.health().state, taken) == ("Failing", [])
        delivery.change(msgspec.structs.replace(SINK, spec=msgspec.structs.replace(SINK.spec, batch=7)))
        await settle()
        assert (len(opened), taken) == (2, ["1"])


async def test_an_inactive_sink_gets_no_lines_until_it_is_active_again(tmp_path: Path) -> None:
    clock, taken = ManualClock(), list[str]()
    delivery = make_delivery(tmp_path / "loki", clock, lambda sink: Taking(taken))
    inactive = msgspec.structs.replace(SINK, spec=msgspec.structs.replace(SINK.spec, active=False))
    async with running(delivery):
        delivery.change(inactive)
        await offer(delivery, clock, "1", "2")
        await clock.advance(60)
        assert taken == []
        delivery.change(SINK)
        await settle()
        assert taken == ["1", "2"]
