"""Spans are kept while there is room, those of what is not worth telling are not, and logs name them."""

from __future__ import annotations

import json
import logging

import pytest

from mandor.lib import logs
from mandor.telemetry.context import SpanContext
from mandor.telemetry.span import current, headers, step, within
from mandor.telemetry.tracer import Tracer, span_queue

PARENT = SpanContext("a" * 32, "b" * 16)


def test_what_has_no_room_is_dropped_and_counted() -> None:
    tracer = Tracer(queue=span_queue(most_items=3))
    for number in range(5):
        tracer.end(tracer.begin(f"span {number}"))
    assert [each.name for each in tracer.take()] == ["span 2", "span 3", "span 4"]
    assert tracer.results["dropped",] == 2
    tracer.end(tracer.begin("later"))
    assert len(tracer.queue) == 1


def test_what_is_not_sampled_leaves_nothing() -> None:
    tracer = Tracer(ratio=0.0)
    span = tracer.begin("nothing")
    with within(span), step("below", {}) as below:
        assert below is None
        assert headers() == {}
    tracer.end(span)
    assert not tracer.take()
    tracer.end(tracer.begin("asked for", PARENT))
    assert [each.name for each in tracer.take()] == ["asked for"], "the caller decides, where there is one"


def test_children_of_a_dropped_span_are_dropped() -> None:
    tracer = Tracer()
    for told in (True, False):
        above = tracer.begin("above")
        above.pending = []
        with within(above), step("below", {}), step("deeper", {}):
            pass
        late = tracer.below(above, "late")
        (tracer.end if told else tracer.drop)(above)
        tracer.end(late)
        tracer.end(tracer.below(above, "latest"))
        names = ["deeper", "below", "above", "late", "latest"]
        assert [each.name for each in tracer.take()] == (names if told else [])


def test_an_error_is_the_spans_failure() -> None:
    tracer = Tracer()
    with pytest.raises(ValueError), within(tracer.begin("above")), step("below", {"a": 1}):
        raise ValueError("no such thing")
    (below,) = tracer.take()
    assert below.failure == "no such thing"
    assert below.attributes == {"a": 1, "error.type": "ValueError"}


def test_an_ended_span_is_not_current() -> None:
    tracer = Tracer()
    span = tracer.begin("over", PARENT)
    with within(span):
        assert current() is span
        assert headers() == {"traceparent": span.context.header}
        tracer.end(span)
        assert current() is None
    assert current() is None


@pytest.mark.req("S2-43")
def test_records_of_the_log_name_trace_and_span(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        logs.set_up("json")
        tracer = Tracer()
        with within(tracer.begin("work", PARENT)) as span:
            logging.getLogger("mandor.test").warning("inside")
        logging.getLogger("mandor.test").warning("outside")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    inside, outside = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (inside["trace_id"], inside["span_id"]) == (PARENT.trace_id, span.context.span_id)
    assert "trace_id" not in outside
