"""The writer: the same plan leads to the same steps in any process."""

from __future__ import annotations

from mandor.controllers.writer import Writer
from mandor.lib.clock import ManualClock
from mandor.model.meta import Meta, Object
from mandor.model.record import Cluster, ClusterSpec, Namespace
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.store.mirror import Mirror
from tests.scenarios.make import make_class, make_instance, make_node, make_workload


class Waited(Mirror):
    """Records the kinds that were awaited."""

    def __init__(self, store: MemoryStore, kind: str, told: list[str]) -> None:
        super().__init__(store, kind)
        self._told = told

    async def reached(self, revision: int) -> None:
        self._told.append(self._kind or "")


async def test_mirrors_are_awaited_in_the_order_of_the_writes() -> None:
    store = MemoryStore(clock=ManualClock())
    values: list[Object] = [
        make_node("n1"),
        make_workload("web"),
        make_instance(0),
        make_class("high", 10),
        Namespace(meta=Meta(name="shop")),
        Cluster(meta=Meta(name="cluster"), spec=ClusterSpec("c1")),
    ]
    kinds, waited = [each.kind for each in values], list[str]()
    writer = Writer(store, {kind: Waited(store, kind, waited) for kind in kinds})
    await writer.commit(
        [Put(each.changed(meta=Meta(name=each.meta.name, namespace=each.meta.namespace))) for each in values]
    )
    assert waited == kinds
