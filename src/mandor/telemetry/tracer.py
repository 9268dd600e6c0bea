"""Tracer: starts and ends spans, and queues finished spans for the exporter."""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import time_ns

from mandor.lib import logs
from mandor.lib.metrics import Counts, Family, counter, gauge
from mandor.telemetry.context import SpanContext, chosen, new_span_id, new_trace_id
from mandor.telemetry.span import Kind, Span, Value, ids

WAITING_MOST = 8192
"""Maximum number of spans that wait to be sent; further spans are dropped and counted."""
BATCH = 512


class Tracer:
    """Starts and ends spans; no method waits or fails, whatever happens to the receiver."""

    def __init__(self, *, ratio: float = 1.0, most: int = WAITING_MOST) -> None:
        """`ratio`: share of recorded traces among those that start here; a continued trace keeps its own decision."""
        self._ratio, self._most = ratio, most
        logs.ask_also(ids)
        self._waiting: deque[Span] = deque()
        self.results = Counts()
        """Number of spans by outcome."""
        self.enough = asyncio.Event()
        """Set when a batch is complete."""

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
            self._keep(each)

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

    def _keep(self, span: Span) -> None:
        if len(self._waiting) >= self._most:
            self.results["dropped",] += 1
            return
        self._waiting.append(span)
        if len(self._waiting) >= BATCH:
            self.enough.set()

    def take(self, most: int = BATCH) -> list[Span]:
        """Return the oldest waiting spans."""
        self.enough.clear()
        taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
        if len(self._waiting) >= BATCH:
            self.enough.set()
        return taken

    def __len__(self) -> int:
        return len(self._waiting)

    def families(self) -> Iterator[Family]:
        results = {(each,): self.results[each,] for each in ("sent", "dropped", "refused")}
        yield counter(
            "mandor_traces_spans_total",
            "Spans that ended: sent, dropped for want of room or of a receiver, refused by it.",
            results,
            "result",
        )
        yield gauge("mandor_traces_waiting_spans", "Spans that wait to be sent.", len(self._waiting))
