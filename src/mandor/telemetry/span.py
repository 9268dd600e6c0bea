"""Span: one step of a trace, and the current span of a task."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import IntEnum
from time import time_ns
from typing import Protocol

from mandor.telemetry.context import SpanContext

Value = str | int | float | bool | tuple[str, ...] | tuple[int, ...]
MESSAGE_MOST = 1000


class Kind(IntEnum):
    """Kind of a span, with OTLP's numbers."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


class SpanFactory(Protocol):
    """Starts and ends child spans; implemented by the tracer that made the span."""

    def below(
        self,
        parent: "Span",
        name: str,
        kind: Kind = Kind.INTERNAL,
        *,
        start: int = 0,
        attributes: dict[str, Value] | None = None,
    ) -> "Span": ...

    def ending(self, span: "Span") -> AbstractContextManager["Span"]: ...


@dataclass(slots=True, eq=False)
class Span:
    tracer: "SpanFactory"
    context: SpanContext
    name: str
    kind: Kind = Kind.INTERNAL
    parent_id: str = ""
    links: tuple[SpanContext, ...] = ()
    start: int = field(default_factory=time_ns)
    """Nanoseconds since the epoch."""
    end: int = 0
    """Nanoseconds since the epoch; 0: not ended."""
    attributes: dict[str, Value] = field(default_factory=dict)
    failure: str | None = None
    """Error message; None: no error."""
    commits: int = 0
    marked: int = 0
    """Number of objects that carry the span's context."""
    pending: "list[Span] | None" = None
    """Finished children of a span that is recorded only if it turns out to matter; None: the span is recorded."""
    held_by: "Span | None" = None
    dropped: bool = False

    @property
    def sampled(self) -> bool:
        return self.context.sampled

    def fail(self, message: str, kind: str = "") -> None:
        self.failure = message[:MESSAGE_MOST]
        if kind:
            self.attributes["error.type"] = kind


_current: ContextVar[Span | None] = ContextVar("span", default=None)


def current() -> Span | None:
    """Return the span of this task; None if it has ended, since tasks can outlive it."""
    span = _current.get()
    return span if span is None or not span.end else None


def ids() -> dict[str, object]:
    """Return the ids of the current span, for log records."""
    span = current()
    if span is None or not span.sampled:
        return {}
    return {"trace_id": span.context.trace_id, "span_id": span.context.span_id}


def headers() -> dict[str, str]:
    """Return the headers of a request that is sent within the current span."""
    span = current()
    return {"traceparent": span.context.header} if span is not None and span.sampled else {}


@contextmanager
def within(span: Span) -> Iterator[Span]:
    """Make the span current for this task and the tasks that it starts."""
    token = _current.set(span)
    try:
        yield span
    finally:
        _current.reset(token)


@contextmanager
def step(name: str, attributes: Mapping[str, Value], kind: Kind = Kind.INTERNAL) -> Iterator[Span | None]:
    """Start a child of the current span; None: there is no current span, and nothing is recorded."""
    above = current()
    if above is None or not above.sampled:
        yield None
        return
    span = above.tracer.below(above, name, kind, attributes=dict(attributes))
    with above.tracer.ending(span), within(span):
        yield span
