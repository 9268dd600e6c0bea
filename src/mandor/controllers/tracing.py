"""Spans of reconciliations: part of the trace that wrote the object, or of a new one if that is long ago."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from mandor.controllers.base import Controller
from mandor.errors import Conflict, MandorError
from mandor.lib.clock import Clock
from mandor.model.meta import Object
from mandor.store.traced import followed, left_by
from mandor.telemetry.span import Kind, Span, Value, within
from mandor.telemetry.tracer import Tracer


class Tracing:
    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self._tracer, self._clock = tracer, clock

    @contextmanager
    def reconciling(self, controller: Controller[Any], key: Hashable) -> Iterator[None]:
        """Trace one reconciliation. The span is dropped if nothing was written, and in a new trace also if only a
        status was."""
        subject = controller.subject(key)
        parent, earlier = followed(subject, self._clock.now()), left_by(subject)
        span = self._tracer.begin(
            f"reconcile {controller.name}",
            parent,
            Kind.CONSUMER,
            links=(earlier,) if parent is None and earlier is not None else (),
        )
        if not span.sampled:
            with within(span):
                yield
            return
        span.pending = []
        span.attributes |= _about(controller.name, key, subject)
        try:
            with within(span):
                yield
        except MandorError as error:
            if not isinstance(error, Conflict):
                span.fail(error.message, error.code)
            raise
        finally:
            self._end(span, new=parent is None)

    def _end(self, span: Span, *, new: bool) -> None:
        if span.marked or (not new and (span.commits or span.failure is not None)):
            self._tracer.end(span)
        else:
            self._tracer.drop(span)


def _about(controller: str, key: Hashable, subject: Object | None) -> dict[str, Value]:
    found: dict[str, Value] = {"mandor.controller": controller}
    if subject is not None:
        found |= {f"mandor.{subject.kind}": subject.meta.name, "mandor.namespace": subject.meta.namespace}
    else:
        found["mandor.key"] = str(key)
    return found
