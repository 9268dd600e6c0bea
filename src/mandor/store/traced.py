"""TracedStore: adds a span to each commit within a span, and a trace mark to new objects."""

import dataclasses
from collections.abc import Callable

from msgspec.structs import replace

from mandor.model.instance import Instance
from mandor.model.meta import Object, TraceMark
from mandor.model.workload import Workload
from mandor.store.base import Put, Store, Write
from mandor.store.wrapper import StoreWrapper
from mandor.telemetry.context import SpanContext, parse_header
from mandor.telemetry.span import Kind, Span, Value, current

WORKLOADS_MOST = 100
INSTANCES_MOST = 25
"""Objects per span that get a trace mark; traces of many thousand instances are not useful."""
FOLLOWED_SECONDS = 900.0
"""Seconds after which later work on a marked object no longer belongs to the trace."""


class TracedStore(StoreWrapper):
    def __init__(self, store: Store, home: str, now: Callable[[], float]) -> None:
        """`home`: the type of store, as in its URL. `now`: returns wall time."""
        super().__init__(store)
        self._home, self._now = home, now

    async def commit(self, *writes: Write) -> int:
        span = current()
        if span is None:
            return await self._store.commit(*writes)
        writes = tuple(self._marked(span, write) if type(write) is Put else write for write in writes)
        if not span.sampled:
            return await self._store.commit(*writes)
        span.commits += 1
        commit = span.tracer.below(span, "store.commit", Kind.CLIENT, attributes=self._about(len(writes)))
        with span.tracer.ending(commit):
            revision = await self._store.commit(*writes)
            commit.attributes["mandor.revision"] = revision
            return revision

    def _about(self, writes: int) -> dict[str, Value]:
        return {"db.system.name": self._home, "db.operation.name": "commit", "db.operation.batch.size": writes}

    def _marked(self, span: Span, put: Put) -> Put:
        """Add a trace mark to new workloads and instances, and to workloads that an API caller changes.

        A changed workload is marked even if the span is not sampled, so that later work starts no trace of its own.
        """
        value = put.value
        asked = isinstance(value, Workload) and span.kind is Kind.SERVER
        if not asked and not (isinstance(value, Workload | Instance) and not value.meta.uid):
            return put
        context = span.context
        if span.sampled and span.marked < (INSTANCES_MOST if isinstance(value, Instance) else WORKLOADS_MOST):
            span.marked += 1
        elif asked:
            context = dataclasses.replace(context, sampled=False)
        else:
            return put
        return Put(value.changed(meta=replace(value.meta, trace=make_mark(context, self._now()))))


def make_mark(context: SpanContext, at: float) -> TraceMark:
    return TraceMark(context.header, round(at, 3))


def followed(value: Object | None, now: float) -> SpanContext | None:
    """Return the span in the object's trace mark, unless the mark is too old."""
    mark = value.meta.trace if value is not None else None
    if mark is None or abs(now - mark.at) > FOLLOWED_SECONDS:
        return None
    return parse_header(mark.parent)


def left_by(value: Object | None) -> SpanContext | None:
    """Return the span in the object's trace mark, however old."""
    mark = value.meta.trace if value is not None else None
    return parse_header(mark.parent) if mark is not None else None
