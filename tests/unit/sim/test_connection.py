"""A connection without answers: watches end after a timeout, or at once when it is repaired."""

import asyncio

import pytest
from msgspec.structs import replace

from mandor.errors import Unavailable
from mandor.model.meta import Meta
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.workload import Release, ReleaseSpec
from mandor.sim.connection import SILENT_SECONDS, StoreConnection
from mandor.sim.virtual import run_virtual
from mandor.store.base import Filter, Put
from mandor.store.memory import MemoryStore
from mandor.testing.store import make_instance, make_workload


async def _ends_after(*, mended_after: float | None, change: bool) -> float:
    store = MemoryStore(bookmark_seconds=1e9)
    connection = StoreConnection(store)
    stream = connection.watch("node", since=0)
    await anext(stream)
    loop = asyncio.get_running_loop()
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(100)
    connection.deafen()
    begun = loop.time()
    if change:
        await store.commit(Put(Node(meta=Meta(name="n1"))))
    if mended_after is not None:
        await asyncio.sleep(mended_after)
        connection.mend()
    with pytest.raises(Unavailable):
        await waiting
    return loop.time() - begun


@pytest.mark.parametrize("change", [True, False])
def test_a_watch_that_receives_nothing_ends_after_a_while_and_shows_nothing_before(change: bool) -> None:
    assert run_virtual(_ends_after(mended_after=None, change=change)) == pytest.approx(SILENT_SECONDS)


def test_a_watch_on_a_wire_that_is_mended_begins_anew() -> None:
    assert run_virtual(_ends_after(mended_after=5, change=True)) == pytest.approx(5)


def test_several_objects_are_one_question_and_none_when_the_wire_is_cut() -> None:
    async def ask() -> float:
        store = MemoryStore()
        nodes = [Node(meta=Meta(name=name)) for name in ("n1", "n2")]
        await store.commit(*map(Put, nodes))
        connection = StoreConnection(store)
        connection.delay_seconds = 2.0
        begun = asyncio.get_running_loop().time()
        found = await connection.get_all([each.key for each in nodes])
        assert [each is not None and each.meta.name for each in found] == ["n1", "n2"]
        took = asyncio.get_running_loop().time() - begun
        connection.cut()
        with pytest.raises(Unavailable):
            await connection.get_all([nodes[0].key])
        return took

    assert run_virtual(ask()) == pytest.approx(2.0)


def test_the_objects_an_instance_needs_come_with_it_on_request() -> None:
    async def watch(*, supplies: bool) -> list[list[tuple[str, int]]]:
        store = MemoryStore()
        workload = make_workload("web")
        spec = ReleaseSpec(workload="web", sequence=1, hash="h", groups=dict(workload.spec.template))
        await store.commit(Put(workload), Put(Release(meta=Meta(name="web.1", namespace="default"), spec=spec)))
        stream = StoreConnection(store).watch("instance", since=store.index.revision, where=Filter(supplies=supplies))
        found = [await anext(stream)]
        order = make_instance("web-0", node="n1")
        order = order.changed(
            spec=replace(order.spec, release="web.1"), status=replace(order.status, phase=Phase.RESERVED)
        )
        await store.commit(Put(order))
        found.append(await anext(stream))
        return [[(each.value.kind, each.revision) for each in batch if not each.bookmark] for batch in found]

    assert run_virtual(watch(supplies=True)) == [[], [("release", 2), ("workload", 2), ("instance", 2)]]
    assert run_virtual(watch(supplies=False)) == [[], [("instance", 2)]]
