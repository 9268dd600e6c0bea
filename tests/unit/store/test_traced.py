"""A commit within a span marks new objects; without a span nothing changes."""

from __future__ import annotations

import pytest

from mandor.errors import Conflict
from mandor.model.instance import Instance, InstanceSpec
from mandor.model.meta import Key, Meta, TraceMark
from mandor.model.node import Node
from mandor.model.workload import Workload
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.store.traced import FOLLOWED_SECONDS, INSTANCES_MOST, TracedStore, followed, left_by
from mandor.telemetry.context import SpanContext
from mandor.telemetry.span import Kind, Span, within
from mandor.telemetry.tracer import Tracer
from tests.scenarios.make import make_node
from tests.scenarios.make import make_workload as stored_workload

PARENT = SpanContext("a" * 32, "b" * 16)


class Place:
    def __init__(self) -> None:
        self.tracer, self.memory = Tracer(), MemoryStore()
        self.store = TracedStore(self.memory, "memory", lambda: 1000.0)

    def span(self, kind: Kind = Kind.INTERNAL, *, sampled: bool = True) -> Span:
        return self.tracer.begin("work", SpanContext(PARENT.trace_id, PARENT.span_id, sampled), kind)

    async def mark(self, key: Key) -> TraceMark | None:
        found = await self.store.get(key)
        assert found is not None
        return found.meta.trace


def make_workload(name: str) -> Workload:
    return stored_workload(name).changed(meta=Meta(name=name, namespace="default"))


def instance(name: str) -> Instance:
    return Instance(
        meta=Meta(name=name, namespace="default"), spec=InstanceSpec(workload="web", release="web.1", index=0)
    )


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.mark.req("S2-43")
async def test_outside_of_a_span_nothing_is_marked_or_recorded(place: Place) -> None:
    web = make_workload("web")
    await place.store.commit(Put(web), Put(instance("web-0")))
    assert await place.mark(web.key) is None
    assert await place.mark(instance("web-0").key) is None
    assert not place.tracer.take()


async def test_new_work_carries_the_span_and_the_commit_is_one(place: Place) -> None:
    span = place.span()
    with within(span):
        revision = await place.store.commit(Put(make_workload("web")), Put(instance("web-0")), Put(make_node("n1")))
    assert await place.mark(instance("web-0").key) == TraceMark(span.context.header, 1000.0)
    assert await place.mark(Key(Workload.kind, "default", "web")) is not None
    assert await place.mark(Key(Node.kind, "", "n1")) is None
    (commit,) = place.tracer.take()
    assert (commit.name, commit.parent_id, commit.kind) == ("store.commit", span.context.span_id, Kind.CLIENT)
    assert commit.attributes == {
        "db.system.name": "memory",
        "db.operation.name": "commit",
        "db.operation.batch.size": 3,
        "mandor.revision": revision,
    }


async def test_only_api_callers_mark_existing_workloads(place: Place) -> None:
    await place.store.commit(Put(make_workload("web")))
    key = make_workload("web").key
    for kind, marked in ((Kind.CONSUMER, False), (Kind.SERVER, True)):
        stored = await place.memory.get(key)
        assert stored is not None
        with within(place.span(kind)):
            await place.store.commit(Put(stored))
        assert (await place.mark(key) is not None) is marked


async def test_a_change_that_is_not_recorded_takes_work_out_of_the_trace_before(place: Place) -> None:
    with within(place.span(Kind.SERVER)):
        await place.store.commit(Put(make_workload("web")))
    stored = await place.memory.get(make_workload("web").key)
    assert stored is not None
    with within(place.span(Kind.SERVER, sampled=False)):
        await place.store.commit(Put(stored), Put(instance("web-0")))
    found = left_by(await place.memory.get(stored.key))
    assert found is not None
    assert not found.sampled
    assert await place.mark(instance("web-0").key) is None


async def test_the_number_of_marked_objects_per_span_is_limited(place: Place) -> None:
    with within(place.span()):
        for number in range(INSTANCES_MOST + 5):
            await place.store.commit(Put(instance(f"web-{number}")))
    marks = [await place.mark(instance(f"web-{number}").key) for number in range(INSTANCES_MOST + 5)]
    assert sum(each is not None for each in marks) == INSTANCES_MOST


async def test_a_commit_that_loses_is_a_span_that_failed(place: Place) -> None:
    await place.store.commit(Put(make_workload("web")))
    with within(place.span()), pytest.raises(Conflict):
        await place.store.commit(Put(make_workload("web")))
    (commit,) = place.tracer.take()
    assert commit.attributes["error.type"] == "conflict"


def test_an_old_mark_is_not_followed() -> None:
    value = make_workload("web")
    value = value.changed(meta=Meta(name="web", namespace="default", trace=TraceMark(PARENT.header, 1000.0)))
    assert followed(value, 1000.0 + FOLLOWED_SECONDS - 1) == PARENT
    assert followed(value, 1000.0 + FOLLOWED_SECONDS + 1) is None
    assert left_by(value) == PARENT
    assert left_by(None) is None


def test_a_mark_is_a_traceparent() -> None:
    with pytest.raises(ValueError, match="55 characters"):
        TraceMark("00-abc")
