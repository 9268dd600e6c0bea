"""Span: one step of a trace, and which of them this task is in."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import IntEnum
from time import time_ns
from typing import TYPE_CHECKING

from mandor.telemetry.context import SpanContext

if TYPE_CHECKING:
    from mandor.telemetry.tracer import Tracer

Value = str | int | float | bool | tuple[str, ...] | tuple[int, ...]
MESSAGE_MOST = 1000


class Kind(IntEnum):
    """With the numbers that OTLP gives them."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


@dataclass(slots=True, eq=False)
class Span:
    tracer: "Tracer"
    context: SpanContext
    name: str
    kind: Kind = Kind.INTERNAL
    parent_id: str = ""
    links: tuple[SpanContext, ...] = ()
    start: int = field(default_factory=time_ns)
    """Nanoseconds since the epoch."""
    end: int = 0
    """0: it goes on."""
    attributes: dict[str, Value] = field(default_factory=dict)
    failure: str | None = None
    """What went wrong; None: nothing did."""
    commits: int = 0
    marked: int = 0
    """How many objects carry it on."""
    pending: "list[Span] | None" = None
    """Not None: whether it is told of is not known before its end, nor whether those below it are."""
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
    """The span that this task is in, unless that has ended: tasks outlive it that were started there."""
    span = _current.get()
    return span if span is None or not span.end else None


def ids() -> dict[str, object]:
    """Of the span that this task is in, for log records."""
    span = current()
    if span is None or not span.sampled:
        return {}
    return {"trace_id": span.context.trace_id, "span_id": span.context.span_id}


def headers() -> dict[str, str]:
    """What a request says of the span that it is sent from."""
    span = current()
    return {"traceparent": span.context.header} if span is not None and span.sampled else {}


@contextmanager
def within(span: Span) -> Iterator[Span]:
    """This task, and those it starts, is in it; so are the log records of both."""
    token = _current.set(span)
    try:
        yield span
    finally:
        _current.reset(token)


@contextmanager
def step(name: str, attributes: Mapping[str, Value], kind: Kind = Kind.INTERNAL) -> Iterator[Span | None]:
    """A span below the one that this task is in; None: it is in none, and nothing is recorded."""
    above = current()
    if above is None or not above.sampled:
        yield None
        return
    span = above.tracer.below(above, name, kind, attributes=dict(attributes))
    with above.tracer.ending(span), within(span):
        yield span
