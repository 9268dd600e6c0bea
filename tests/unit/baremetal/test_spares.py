"""Spares are made step by step, undone after failures, continued by a new leader, and released."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from mandor.api.routes.spares import prepare_spare
from mandor.baremetal.fake import FakePipeline
from mandor.baremetal.ready import Ready
from mandor.baremetal.request_change import change_request
from mandor.baremetal.settings import VmRequestSettings
from mandor.baremetal.spares import Spares
from mandor.baremetal.targets import Target
from mandor.errors import Unavailable
from mandor.lib.clock import ManualClock
from mandor.model.meta import Key, Object
from mandor.model.spare import Spare, SpareSpec
from mandor.model.vm_request import VmRequest
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.store.recorder import Recorder


@dataclass
class Joined(Ready):
    pipeline: FakePipeline
    never: bool = False

    async def check(self, name: str) -> str:
        return "the machine has not joined" if self.never or name not in self.pipeline.there else ""


class Flaky(MemoryStore):
    """A store whose next reads of spares fail."""

    away = 0

    async def get(self, key: Key) -> Object | None:
        if self.away and key.kind == Spare.kind:
            self.away -= 1
            raise Unavailable("the store is away")
        return await super().get(key)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.pipeline = FakePipeline()
        self.ready = Joined(self.pipeline)
        self.room = 100
        self.clusters = ["prod"]
        self.targets: dict[str, Target] = {}

    async def prepare(self, **fields: object) -> Spare:
        spec = SpareSpec(**({"count": 2, "cpu": 4, "memory_mib": 1024, "cluster": "prod"} | fields))  # type: ignore[arg-type]
        return await prepare_spare(self.store, self.clock, spec, "default", "user:ani")

    async def find(self, spare: Spare) -> Spare:
        found = await self.store.get(spare.key)
        assert isinstance(found, Spare)
        return found

    async def tasks(self) -> list[VmRequest]:
        return [each for each in (await self.store.list(VmRequest.kind)).items if isinstance(each, VmRequest)]

    async def release(self, spare: Spare, *, gone: bool = False) -> None:
        found = await self.find(spare)
        spec = msgspec.structs.replace(found.spec, released="upgrade done", gone=gone)
        await self.store.commit(Put(found.changed(spec=spec)))

    async def _place(self) -> None:
        """Place requests as the scheduler does."""
        while True:
            for task in await self.tasks():
                if task.status.state == "Queued":
                    self.room -= 1
                    await change_request(self.store, task.key, self._placed if self.room >= 0 else self._refused)
            await self.clock.sleep(0.2)

    def _placed(self, task: VmRequest) -> VmRequest:
        begun = task.moved("Processing", self.clock.now())
        return begun.moved("Placed", self.clock.now(), node="bm-1", address="10.0.0.1")

    def _refused(self, task: VmRequest) -> VmRequest:
        return task.moved("Failed", self.clock.now(), error="No available nodes", reason="NoNode")

    @asynccontextmanager
    async def leading(self, create_seconds: float = 60.0, **settings: Any) -> AsyncIterator[Recorder]:
        recorder = Recorder(self.store, "tasks", self.clock)
        target = Target(self.pipeline, self.ready, create_seconds, ready_seconds=60.0, attempts=3)
        targets = self.targets or dict.fromkeys(self.clusters, target)
        spares = Spares(self.store, self.clock, recorder, targets, VmRequestSettings(**settings))
        running = [asyncio.ensure_future(spares.run()), asyncio.ensure_future(self._place())]
        try:
            yield recorder
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)
            assert all(task.cancelled() for task in running), [task.exception() for task in running]


@pytest.mark.req("S4-28", "S4-29", "S4-33")
async def test_machines_are_placed_created_awaited_and_confirmed() -> None:
    world = World()
    spare = await world.prepare()
    async with world.leading() as recorder:
        await world.clock.advance(10)
        await recorder.flush()
    found = await world.find(spare)
    assert found.status.phase == "Ready"
    assert [vm.state for vm in found.status.vms] == ["Ready", "Ready"]
    assert [each.phase for each in found.status.history] == ["Preparing", "Ready"]
    assert {task.status.state for task in await world.tasks()} == {"Confirmed"}
    assert {task.spec.owner for task in await world.tasks()} == {f"spare/{spare.meta.name}"}
    assert len(world.pipeline.calls) == 2
    reasons = [each.spec.reason for each in (await world.store.list("event")).items]
    assert reasons == ["SpareReady"], "which goes to whoever waits for it, by webhook"


@pytest.mark.req("S4-40")
async def test_each_of_many_clusters_has_its_own_pipeline_and_readiness_and_its_failures_concern_no_other() -> None:
    world, count = World(), 20
    pipelines = {f"c{number}": FakePipeline(broken=number == 3) for number in range(count)}
    world.targets = {
        name: Target(each, Joined(each, never=name == "c5"), ready_seconds=60.0, attempts=1)
        for name, each in pipelines.items()
    }
    spares = {name: await world.prepare(cluster=name, count=1) for name in pipelines}
    async with world.leading():
        await world.clock.advance(90)
    phases = {name: (await world.find(spare)).status.phase for name, spare in spares.items()}
    assert phases == {name: "Failed" if name in {"c3", "c5"} else "Ready" for name in pipelines}
    for name, pipeline in pipelines.items():
        (vm,) = (await world.find(spares[name])).status.vms
        assert all(call.split()[1] == vm.name for call in pipeline.calls)
        assert pipeline.calls[0] == f"create {vm.name} on bm-1"
        assert [each.cluster for each in pipeline.there.values()] == [name] * (phases[name] == "Ready")


@pytest.mark.req("S4-35")
async def test_released_machines_are_deleted_and_their_resources_freed() -> None:
    world = World()
    spare = await world.prepare()
    async with world.leading():
        await world.clock.advance(10)
        await world.release(spare)
        await world.clock.advance(10)
    assert (await world.find(spare)).status.phase == "Released"
    assert not world.pipeline.there
    assert {task.status.state for task in await world.tasks()} == {"Released"}


@pytest.mark.req("S4-35")
async def test_a_spare_with_a_time_is_released_when_it_is_over() -> None:
    world = World()
    spare = await world.prepare(release_after=100.0)
    async with world.leading():
        await world.clock.advance(90)
        assert (await world.find(spare)).status.phase == "Ready"
        await world.clock.advance(60)
    assert (await world.find(spare)).status.phase == "Released"


@pytest.mark.req("S4-34")
async def test_a_pipeline_that_fails_is_tried_again() -> None:
    world = World()
    world.pipeline.fails = 2
    spare = await world.prepare(count=1)
    async with world.leading():
        await world.clock.advance(60)
    assert (await world.find(spare)).status.phase == "Ready"
    assert len(world.pipeline.calls) == 3


@pytest.mark.req("S4-34")
@pytest.mark.parametrize("trouble", ["broken", "tries", "never", "room"])
async def test_after_any_failure_no_machine_and_no_claim_is_left(trouble: str) -> None:
    world = World()
    world.pipeline.broken = trouble == "broken"
    world.pipeline.fails = 99 if trouble == "tries" else 0
    world.ready.never = trouble == "never"
    world.room = 1 if trouble == "room" else 100
    spare = await world.prepare()
    async with world.leading() as recorder:
        await world.clock.advance(400)
        await recorder.flush()
    found = await world.find(spare)
    assert found.status.phase == "Failed"
    assert found.status.message
    assert not world.pipeline.there
    assert all(task.ended for task in await world.tasks())
    assert "SpareFailed" in {each.spec.reason for each in (await world.store.list("event")).items}


@pytest.mark.req("S4-34")
async def test_a_pipeline_that_exceeds_its_time_limit_fails() -> None:
    world = World()
    world.pipeline.hangs = True
    spare = await world.prepare(count=1)
    async with world.leading(create_seconds=0.05):
        async with asyncio.timeout(60):
            while (await world.find(spare)).status.phase != "Failed":
                await asyncio.sleep(0.02)
                await world.clock.advance(5)
    assert "not created within 50ms" in (await world.find(spare)).status.message
    assert not world.pipeline.there


async def test_a_machine_that_cannot_be_deleted_keeps_its_resources_until_it_is_gone() -> None:
    world = World()
    spare = await world.prepare(count=1)
    async with world.leading():
        await world.clock.advance(10)
        world.pipeline.stays = 3
        await world.release(spare)
        await world.clock.advance(2)
        (task,) = await world.tasks()
        assert task.status.state == "Confirmed"
        assert "cannot be deleted" in (await world.find(spare)).status.vms[0].message
        await world.clock.advance(120)
        (task,) = await world.tasks()
        assert task.status.state == "Released"


async def test_a_spare_released_while_it_is_made_is_deleted() -> None:
    world = World()
    world.ready.never = True
    spare = await world.prepare(count=1)
    async with world.leading():
        await world.clock.advance(5)
        await world.release(spare)
        await world.clock.advance(10)
    assert (await world.find(spare)).status.phase == "Released"
    assert not world.pipeline.there


@pytest.mark.parametrize("after", [0.1, 0.6, 1.1, 1.6, 2.1, 3.1])
async def test_a_new_leader_continues_at_the_stored_step(after: float) -> None:
    world = World()
    spare = await world.prepare()
    async with world.leading():
        await world.clock.advance(after)
    async with world.leading():
        await world.clock.advance(30)
    assert (await world.find(spare)).status.phase == "Ready"
    assert len(await world.tasks()) == 2
    assert len(world.pipeline.there) == 2


async def test_a_cluster_without_a_pipeline_fails_at_once() -> None:
    world = World()
    spare = await world.prepare(cluster="other")
    async with world.leading():
        await world.clock.advance(5)
        found = await world.find(spare)
    assert "there is no pipeline for the cluster other" in found.status.message


async def test_a_temporarily_unavailable_store_fails_no_spare() -> None:
    world = World()
    store = world.store = Flaky(clock=world.clock)
    spare = await world.prepare()
    async with world.leading():
        for _ in range(6):
            store.away = 3
            await world.clock.advance(3)
        store.away = 0
        await world.clock.advance(60)
    found = await world.find(spare)
    assert [each.phase for each in found.status.history] == ["Preparing", "Ready"]


async def test_a_machine_deleted_by_hand_frees_its_resources() -> None:
    """This includes clusters that are no longer in the file and have no pipeline."""
    world = World()
    spare = await world.prepare(count=2)
    async with world.leading():
        await world.clock.advance(10)
    world.clusters.clear()
    async with world.leading() as recorder:
        await world.release(spare)
        await world.clock.advance(3600)
        assert {task.status.state for task in await world.tasks()} == {"Confirmed"}
        await recorder.flush()
        stays = [each for each in (await world.store.list("event")).items if each.spec.reason == "SpareStays"]
        assert len(stays) == 2
        assert "no longer a pipeline for the cluster prod" in stays[0].spec.message
        await world.release(spare, gone=True)
        await world.clock.advance(1)
    assert (await world.find(spare)).status.phase == "Released"
    assert {task.status.state for task in await world.tasks()} == {"Released"}


@pytest.mark.req("S4-33")
async def test_ended_spares_are_kept_up_to_an_age_and_number() -> None:
    world = World()
    old, ready = await world.prepare(), await world.prepare()
    async with world.leading(spares_kept_most=2, spares_kept_seconds=1000.0):
        await world.clock.advance(10)
        await world.release(old)
        await world.clock.advance(900)
        assert await world.store.get(old.key) is not None
        await world.clock.advance(300)
        assert await world.store.get(old.key) is None
        later = [await world.prepare(cluster="other") for _ in range(5)]
        await world.clock.advance(120)
        assert sum([await world.store.get(each.key) is not None for each in later]) == 2
        assert (await world.find(ready)).status.phase == "Ready"
