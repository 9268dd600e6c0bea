"""What is sent is what OpenTelemetry's own definitions say; what cannot be sent costs nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.lib.backoff import Backoff
from mandor.telemetry.context import SpanContext
from mandor.telemetry.exporter import TRIES_MOST, Exporter
from mandor.telemetry.otlp import encode
from mandor.telemetry.span import Kind, Value
from mandor.telemetry.target import Target
from mandor.telemetry.tracer import BATCH, Tracer, span_queue
from tests.components.ports import free_port
from tests.components.trace_receiver import read, receiving

RESOURCE = {"service.name": "tested"}
LINK = SpanContext("c" * 32, "d" * 16)
values = st.one_of(
    st.text(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
) | st.lists(st.text()).map(tuple)


@pytest.mark.req("S2-43")
@given(
    name=st.text(min_size=1),
    kind=st.sampled_from(list(Kind)),
    about=st.dictionaries(st.text(min_size=1), values),
    failure=st.none() | st.text(),
    linked=st.booleans(),
)
def test_every_span_is_read_as_it_was_written(
    name: str, kind: Kind, about: dict[str, Value], failure: str | None, linked: bool
) -> None:
    tracer = Tracer()
    parent = tracer.begin("parent")
    span = tracer.begin(name, parent.context, kind, attributes=about, links=(LINK,) if linked else ())
    span.failure = failure
    tracer.end(span)
    (found,) = read(encode(tracer.take(), RESOURCE))
    assert (found.trace_id, found.parent_id) == (parent.context.trace_id, parent.context.span_id)
    assert (found.span_id, found.name, found.kind) == (span.context.span_id, name, kind)
    assert (found.start, found.end) == (span.start, span.end)
    assert found.attributes == {key: list(each) if isinstance(each, tuple) else each for key, each in about.items()}
    assert (found.status, found.message) == ((2, failure) if failure is not None else (0, ""))
    assert found.links == (((LINK.trace_id, LINK.span_id),) if linked else ())


@asynccontextmanager
async def exporting(tracer: Tracer, url: str) -> AsyncIterator[None]:
    target = Target(f"{url}/v1/traces", {"authorization": "Bearer secret"})
    exporter = Exporter(tracer, target, RESOURCE, again=Backoff(0.01, 0.02))
    task = asyncio.ensure_future(exporter.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.02)


def ended(tracer: Tracer, count: int) -> None:
    for number in range(count):
        tracer.end(tracer.begin(f"span {number}"))


async def test_spans_go_out_in_batches() -> None:
    tracer = Tracer(queue=span_queue(linger_seconds=0.01))
    with receiving() as receiver:
        ended(tracer, 2 * BATCH + 3)
        async with exporting(tracer, receiver.url):
            await until(lambda: len(receiver.spans) == 2 * BATCH + 3)
            assert receiver.requests == 3
            await until(lambda: tracer.results["sent",] == 2 * BATCH + 3)
        assert not receiver.faults


async def test_a_busy_receiver_is_asked_again_and_one_that_refuses_is_not() -> None:
    tracer = Tracer(queue=span_queue(linger_seconds=0.01))
    with receiving() as receiver:
        receiver.answers += [503, 429]
        ended(tracer, 2)
        async with exporting(tracer, receiver.url):
            await until(lambda: tracer.results["sent",] == 2)
            assert receiver.requests == 3
            receiver.answers.append(400)
            ended(tracer, 3)
            await until(lambda: tracer.results["refused",] == 3)
            assert receiver.requests == 4


@pytest.mark.req("S2-43")
async def test_without_a_receiver_spans_are_dropped_without_waiting() -> None:
    tracer = Tracer(queue=span_queue(most_items=10, linger_seconds=0.01))
    async with exporting(tracer, f"http://127.0.0.1:{free_port()}"):
        ended(tracer, 4)
        await until(lambda: tracer.results["dropped",] == 4)
        ended(tracer, 20)
        assert len(tracer.queue) <= 10
        await until(lambda: tracer.results["dropped",] == 24)
    assert TRIES_MOST > 1


async def test_the_last_spans_are_sent_when_the_process_ends() -> None:
    tracer = Tracer(queue=span_queue(linger_seconds=0.01))
    with receiving() as receiver:
        async with exporting(tracer, receiver.url):
            await asyncio.sleep(0.05)
            ended(tracer, 5)
        assert len(receiver.spans) == 5
