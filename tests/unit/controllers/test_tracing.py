"""A reconciliation is recorded if it creates objects or belongs to a trace."""

from __future__ import annotations

import msgspec
import pytest

from mandor.controllers.base import Controller
from mandor.controllers.tracing import Tracing
from mandor.errors import Unavailable
from mandor.lib.clock import ManualClock
from mandor.model.instance import Instance, InstanceSpec
from mandor.model.meta import Meta, Object, TraceMark
from mandor.model.workload import Workload
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.store.traced import FOLLOWED_SECONDS, TracedStore, left_by
from mandor.telemetry.context import SpanContext
from mandor.telemetry.tracer import Tracer
from tests.scenarios.make import make_workload

PARENT = SpanContext("a" * 32, "b" * 16)


class Looks(Controller[str]):
    name = "looks"

    def __init__(self, subject: Object) -> None:
        self._subject = subject

    def subject(self, key: str) -> Object | None:
        return self._subject

    async def reconcile(self, key: str) -> float | None:
        return None


class Place:
    def __init__(self, *, ago: float | None, sampled: bool = True) -> None:
        self.clock, self.tracer = ManualClock(), Tracer()
        self.store = TracedStore(MemoryStore(), "memory", self.clock.now)
        parent = SpanContext(PARENT.trace_id, PARENT.span_id, sampled)
        mark = TraceMark(parent.header, self.clock.now() - ago) if ago is not None else None
        self.workload: Workload = make_workload("web")
        self.workload = self.workload.changed(meta=msgspec.structs.replace(self.workload.meta, trace=mark))
        self.controller = Looks(self.workload)
        self.tracing = Tracing(self.tracer, self.clock)

    async def make(self, name: str = "web-0") -> Instance:
        made = Instance(
            meta=Meta(name=name, namespace="default"), spec=InstanceSpec(workload="web", release="r", index=0)
        )
        with self.tracing.reconciling(self.controller, "web"):
            await self.store.commit(Put(made))
        found = await self.store.get(made.key)
        assert isinstance(found, Instance)
        return found


async def test_a_reconciliation_without_writes_records_no_span() -> None:
    for ago in (None, 1.0):
        place = Place(ago=ago)
        with place.tracing.reconciling(place.controller, "web"):
            pass
        assert not place.tracer.take()


async def test_objects_created_for_an_api_call_are_part_of_its_trace() -> None:
    place = Place(ago=1.0)
    made = await place.make()
    commit, reconcile = place.tracer.take()
    assert (reconcile.context.trace_id, reconcile.parent_id, reconcile.links) == (PARENT.trace_id, PARENT.span_id, ())
    assert commit.parent_id == reconcile.context.span_id
    assert left_by(made) == reconcile.context
    assert reconcile.attributes["mandor.workload"] == "web"


@pytest.mark.parametrize("ago", [None, FOLLOWED_SECONDS + 1])
async def test_objects_created_long_after_start_a_linked_trace(ago: float | None) -> None:
    place = Place(ago=ago)
    made = await place.make()
    _, reconcile = place.tracer.take()
    assert reconcile.parent_id == ""
    assert reconcile.links == ((PARENT,) if ago is not None else ())
    assert left_by(made) == reconcile.context


async def test_a_status_update_starts_no_trace() -> None:
    place = Place(ago=None)
    made = await place.make()
    place.tracer.take()
    with place.tracing.reconciling(place.controller, "web"):
        await place.store.commit(Put(made))
    assert not place.tracer.take()


async def test_work_caused_by_an_unsampled_call_is_not_sampled() -> None:
    place = Place(ago=1.0, sampled=False)
    made = await place.make()
    assert made.meta.trace is None
    assert not place.tracer.take()


async def test_an_error_within_a_trace_is_recorded() -> None:
    place = Place(ago=1.0)
    with pytest.raises(Unavailable), place.tracing.reconciling(place.controller, "web"):
        raise Unavailable("the store is away")
    (reconcile,) = place.tracer.take()
    assert reconcile.failure == "the store is away"
