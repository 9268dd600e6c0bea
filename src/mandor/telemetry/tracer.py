"""Tracer: starts and ends spans, and queues finished spans for the exporter."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import time_ns

from mandor.lib import logs
from mandor.lib.clock import Clock, SystemClock
from mandor.lib.metrics import Counts, Family, counter, gauge
from mandor.telemetry.batch_queue import BatchQueue
from mandor.telemetry.context import SpanContext, chosen, new_span_id, new_trace_id
from mandor.telemetry.span import Kind, Span, Value, ids

WAITING_MOST = 8192
"""Maximum number of spans that wait to be sent; the oldest are dropped and counted."""
WAITING_BYTES_MOST = 16 << 20
BATCH = 512
BATCH_BYTES = 1 << 20
LINGER_SECONDS = 1.0


def span_bytes(span: Span) -> int:
    """Return about the size of the span in a request."""
    texts = len(span.name) + len(span.failure or "")
    return 400 + texts + sum(len(name) + len(str(value)) for name, value in span.attributes.items())


def span_queue(
    clock: Clock | None = None, *, most_items: int = WAITING_MOST, linger_seconds: float = LINGER_SECONDS
) -> BatchQueue[Span]:
    return BatchQueue(
        clock or SystemClock(),
        span_bytes,
        most_items=most_items,
        most_bytes=WAITING_BYTES_MOST,
        batch_items=BATCH,
        batch_bytes=BATCH_BYTES,
        linger_seconds=linger_seconds,
    )


class Tracer:
    """Starts and ends spans; no method waits or fails, whatever happens to the receiver."""

    def __init__(self, *, ratio: float = 1.0, queue: BatchQueue[Span] | None = None) -> None:
        """`ratio`: share of recorded traces among those that start here; a continued trace keeps its own decision."""
        self._ratio = ratio
        logs.ask_also(ids)
        self.queue = queue if queue is not None else span_queue()
        """Spans that wait to be sent."""
        self.results = Counts()
        """Number of spans by outcome."""

    def begin(
        self,
        name: str,
        parent: SpanContext | None = None,
        kind: Kind = Kind.INTERNAL,
        *,
        start: int = 0,
        attributes: dict[str, Value] | None = None,
        links: Sequence[SpanContext] = (),
    ) -> Span:
        """Start a span; without a parent, it starts a trace. `start`: nanoseconds since the epoch; default: now."""
        if parent is not None:
            context = SpanContext(parent.trace_id, new_span_id(), parent.sampled)
        else:
            trace_id = new_trace_id()
            context = SpanContext(trace_id, new_span_id(), chosen(trace_id, self._ratio))
        return Span(
            self,
            context,
            name,
            kind,
            parent.span_id if parent is not None else "",
            tuple(links),
            start or time_ns(),
            attributes=attributes if attributes is not None else {},
        )

    def below(
        self,
        parent: Span,
        name: str,
        kind: Kind = Kind.INTERNAL,
        *,
        start: int = 0,
        attributes: dict[str, Value] | None = None,
    ) -> Span:
        span = self.begin(name, parent.context, kind, start=start, attributes=attributes)
        span.held_by = parent if parent.pending is not None or parent.dropped else parent.held_by
        return span

    def end(self, span: Span, *, at: int = 0) -> None:
        """End a span once; spans that are not sampled are dropped."""
        if span.end or not span.sampled:
            return
        span.end = max(at or time_ns(), span.start)
        if span.held_by is not None and span.held_by.pending is not None:
            span.held_by.pending.append(span)
            return
        if span.held_by is not None and span.held_by.dropped:
            return
        held, span.pending = span.pending or (), None
        for each in (*held, span):
            self.results["dropped",] += self.queue.put(each)

    def drop(self, span: Span) -> None:
        """Drop a span and the children that were held back for it."""
        span.end, span.pending, span.dropped = span.start, None, True

    @contextmanager
    def ending(self, span: Span) -> Iterator[Span]:
        """End the span with the block, with an error if the block raises."""
        try:
            yield span
        except Exception as error:
            span.fail(str(error) or type(error).__name__, getattr(error, "code", type(error).__name__))
            raise
        finally:
            self.end(span)

    def take(self, most: int = BATCH) -> list[Span]:
        """Remove and return the oldest waiting spans."""
        return self.queue.take(most)

    def families(self) -> Iterator[Family]:
        results = {(each,): self.results[each,] for each in ("sent", "dropped", "refused")}
        yield counter(
            "mandor_traces_spans_total",
            "Spans that ended: sent, dropped for want of room or of a receiver, refused by it.",
            results,
            "result",
        )
        yield gauge("mandor_traces_waiting_spans", "Spans that wait to be sent.", len(self.queue))
