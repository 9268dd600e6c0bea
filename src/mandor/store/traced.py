"""TracedStore: the store itself; who writes within a span leaves a span of the commit, and a mark on what is new."""

import dataclasses
from collections.abc import Callable

from msgspec.structs import replace

from mandor.model.instance import Instance
from mandor.model.meta import Object, TraceMark
from mandor.model.workload import Workload
from mandor.store.base import Put, Store, Write
from mandor.store.passing import PassingStore
from mandor.telemetry.context import SpanContext, parse_header
from mandor.telemetry.span import Kind, Span, Value, current

WORKLOADS_MOST = 100
INSTANCES_MOST = 25
"""So many objects carry one span on: a trace of ten thousand instances is of use to nobody."""
FOLLOWED_SECONDS = 900.0
"""Whatever is done later because of an object that a trace left its mark on is not part of it any more."""


class TracedStore(PassingStore):
    def __init__(self, store: Store, home: str, now: Callable[[], float]) -> None:
        """`home`: what kind of store it is, as in its URL. `now`: wall time."""
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
        """New work, and work that a caller of the API changes: its mark is the last change's, also where that is not
        recorded, so that nobody begins a trace of his own for what comes of it."""
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
    """The span that an object's mark names, while what comes of it is still part of that trace."""
    mark = value.meta.trace if value is not None else None
    if mark is None or abs(now - mark.at) > FOLLOWED_SECONDS:
        return None
    return parse_header(mark.parent)


def left_by(value: Object | None) -> SpanContext | None:
    """The span that an object's mark names, however long ago."""
    mark = value.meta.trace if value is not None else None
    return parse_header(mark.parent) if mark is not None else None
