"""The workload controller draws no conclusions from objects that are not mirrored yet."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from mandor.controllers.runner import run
from mandor.controllers.workload import PACE_MOST, TOGETHER_MOST, WorkloadController, rest_seconds
from mandor.lib.clock import ManualClock, settle
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta
from mandor.model.phase import Phase
from mandor.model.workload import Workload, make_release
from mandor.store.base import ALL, Filter, Listing, Put
from mandor.store.memory import MemoryStore
from mandor.store.recorder import Recorder
from mandor.store.wrapper import StoreWrapper
from tests.scenarios.make import make_instance, make_workload


class LateStore(StoreWrapper):
    """A store whose lists and watches of workloads lag behind and show none."""

    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        listing = await self._store.list(kind, where)
        return Listing((), listing.revision) if kind == Workload.kind else listing


async def test_an_instance_seen_before_its_workload_is_not_stopped() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    workload = make_workload("web", replicas=1).changed(meta=Meta(name="web", namespace="default"))
    running = make_instance(0, Phase.RUNNING).changed(meta=Meta(name="web-0", namespace="default"))
    await store.commit(Put(workload))
    await store.commit(Put(make_release(workload, 1)))
    await store.commit(Put(running))
    late = LateStore(store)
    controller = WorkloadController(late, clock, Recorder(late, "test", clock))
    task = asyncio.ensure_future(run(controller, late, clock))
    await settle(200)
    await clock.advance(30)
    found = await store.get(running.key)
    task.cancel()
    await asyncio.wait({task})
    assert isinstance(found, Instance)
    assert found.spec.stop is None
    assert found.phase is Phase.RUNNING


def test_only_large_workloads_pause_between_plans() -> None:
    assert rest_seconds(100, others=50) == 0.0
    alone, with_one = rest_seconds(5_000, others=0), rest_seconds(5_000, others=1)
    assert 0 < alone <= PACE_MOST
    assert with_one == 2 * alone
    assert rest_seconds(1_000_000, others=1_000) == TOGETHER_MOST


async def test_every_step_of_its_instances_is_written_to_the_status_of_a_workload() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    controller = WorkloadController(store, clock, Recorder(store, "test", clock))
    task = asyncio.ensure_future(run(controller, store, clock))
    await store.commit(Put(make_workload("web", version=0, replicas=2)))
    await settle(200)
    for name in ("web-0", "web-1"):
        instance = await store.get(Key(Instance.kind, "default", name))
        assert isinstance(instance, Instance)
        await store.commit(Put(instance.changed(status=replace(instance.status, phase=Phase.RUNNING))))
        await settle(200)
    task.cancel()
    await asyncio.wait({task})
    changes = await anext(aiter(store.watch(Workload.kind, since=0)))
    written = [each.after for each in changes if isinstance(each.after, Workload)]
    assert written[-1].status.release == "web.1"
    assert {each.status.running for each in written} == {0, 1, 2}


async def test_a_workload_that_depends_on_a_started_one_does_not_wait() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    controller = WorkloadController(store, clock, Recorder(store, "test", clock))
    task = asyncio.ensure_future(run(controller, store, clock))
    await store.commit(Put(make_workload("web", version=0, update={"min_healthy": "1m"})))
    await settle(200)
    instance = await store.get(Key(Instance.kind, "default", "web-0"))
    assert isinstance(instance, Instance)
    running = replace(instance.status, phase=Phase.RUNNING, ready=True)
    await store.commit(Put(instance.bound("n1", at=clock.now()).changed(status=running)))
    await settle(200)
    await store.commit(Put(make_workload("shop", version=0, depends_on={"web": "started"})))
    await settle(200)
    shop = await store.get(Key(Instance.kind, "default", "shop-0"))
    task.cancel()
    await asyncio.wait({task})
    assert isinstance(shop, Instance)
    assert not shop.spec.waits
