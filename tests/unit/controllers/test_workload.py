"""The workload controller: nothing is concluded from what is only not seen yet."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from mandor.controllers.draft import Draft
from mandor.controllers.runner import run
from mandor.controllers.workload import PACE_MOST, TOGETHER_MOST, Name, WorkloadController, rest_seconds
from mandor.lib.clock import ManualClock, settle
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta
from mandor.model.phase import Phase
from mandor.model.workload import Workload, make_release
from mandor.store.base import ALL, Change, Filter, Listing, Put
from mandor.store.memory import MemoryStore
from mandor.store.passing import PassingStore
from mandor.store.recorder import Recorder
from tests.scenarios.make import make_instance, make_workload

WEB = Name("default", "web")


class LateStore(PassingStore):
    """Its lists and watches of workloads are behind: they show none."""

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


def test_small_workloads_do_not_rest_and_large_ones_wait_for_each_other() -> None:
    assert rest_seconds(100, others=50) == 0.0
    alone, with_one = rest_seconds(5_000, others=0), rest_seconds(5_000, others=1)
    assert 0 < alone <= PACE_MOST
    assert with_one == 2 * alone
    assert rest_seconds(1_000_000, others=1_000) == TOGETHER_MOST


async def test_a_status_that_the_controller_has_written_makes_no_new_plan_unless_something_else_is_new() -> None:
    store, clock = MemoryStore(), ManualClock()
    controller = WorkloadController(store, clock, Recorder(store, "test", clock))
    planned = make_workload("web")
    told = planned.changed(status=replace(planned.status, running=1))
    also = planned.changed(status=replace(planned.status, running=1))
    turned = planned.changed(status=replace(planned.status, release="web.2"))

    def seen(written: Workload, *changes: Change) -> float | str | None:
        controller._news.clear()
        controller._note_told(WEB, planned, Draft([Put(written)], again_seconds=30.0))
        assert all(WEB in controller.observe_all([each]) for each in changes)
        found = controller._planned.pop(WEB, None)
        return "planned anew" if found is None or WEB in controller._news else found.again(clock.monotonic() + 10)

    assert seen(told, Change(2, planned, told)) == 20
    assert seen(told, Change(2, planned, told), Change(3, told, told)) == "planned anew"
    assert seen(told, Change(2, planned, also)) == "planned anew"
    assert seen(turned, Change(2, planned, turned)) == "planned anew"
    instance = make_instance(0, Phase.RUNNING)
    assert seen(told, Change(2, planned, told), Change(3, None, instance)) == "planned anew"
    assert seen(told, Change(2, None, instance), Change(3, planned, told)) == "planned anew"


async def test_where_nobody_watches_a_status_is_written_only_if_it_could_change_a_plan() -> None:
    async def told(*others: Workload, watched: bool) -> set[int]:
        """How many instances were ever said to run."""
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        controller = WorkloadController(store, clock, Recorder(store, "test", clock), watched=watched)
        task = asyncio.ensure_future(run(controller, store, clock))
        for each in (make_workload("web", version=0, replicas=2), *others):
            await store.commit(Put(each))
        await settle(200)
        for name in ("web-0", "web-1"):
            instance = await store.get(Key(Instance.kind, "default", name))
            assert isinstance(instance, Instance)
            await store.commit(Put(instance.changed(status=replace(instance.status, phase=Phase.RUNNING))))
            await settle(200)
        task.cancel()
        await asyncio.wait({task})
        changes = await anext(aiter(store.watch(Workload.kind, since=0)))
        seen = [each.after for each in changes if isinstance(each.after, Workload) and each.after.meta.name == "web"]
        assert seen[-1].status.release == "web.1"
        return {each.status.running for each in seen}

    assert await told(watched=True) == {0, 1, 2}
    assert await told(watched=False) == {0}
    waits = make_workload("shop", version=0, depends_on={"web": "started"})
    assert await told(waits, watched=False) == {0, 1, 2}


async def test_where_nobody_watches_steps_of_those_in_place_are_not_planned_for() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    controller = WorkloadController(store, clock, Recorder(store, "test", clock), watched=False)
    task = asyncio.ensure_future(run(controller, store, clock))
    await store.commit(Put(make_workload("web", version=0, replicas=2, update={"min_healthy": "0s"})))
    await settle(200)
    made = [await store.get(Key(Instance.kind, "default", name)) for name in ("web-0", "web-1")]
    first, second = (each for each in made if isinstance(each, Instance))
    task.cancel()
    await asyncio.wait({task})

    def asks(before: Instance, **status: object) -> bool:
        known = dict(controller._in_place)
        after = before.changed(status=replace(before.status, **status))
        asked = bool(list(controller.observe_all([Change(9, before, after)])))
        controller.observe_all([Change(10, after, before)])
        controller._in_place = known
        return asked

    assert not asks(first, phase=Phase.STARTING)
    assert asks(first, phase=Phase.RUNNING, ready=True), "the roll-out waits for it"
    assert asks(second, phase=Phase.FAILED)
    controller._in_place[WEB] = True
    assert not asks(first, phase=Phase.RUNNING, ready=True)
    assert asks(second, phase=Phase.LOST)
    list(controller.observe_all([Change(11, second, None)]))
    assert asks(first, phase=Phase.STARTING), "another one is gone"


async def test_where_nobody_watches_whoever_comes_later_is_told_how_far_those_are_that_it_waits_for() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    controller = WorkloadController(store, clock, Recorder(store, "test", clock), watched=False)
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
