"""Schedules: runs begin at their times, over restarts of the controllers, and end with their workload."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from mandor.lib.clock import settle
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.phase import Phase
from mandor.model.schedule import Schedule
from mandor.model.workload import Workload
from mandor.store.base import Delete
from tests.scenarios.make import make_workload
from tests.scenarios.world import World


def nightly(**schedule: Any) -> Workload:
    made = make_workload("nightly", type="batch")
    return made.changed(spec=replace(made.spec, schedule=Schedule(**{"cron": ("*/5 * * * *",), **schedule})))


async def workloads(world: World) -> dict[str, Workload]:
    return {each.meta.name: each for each in (await world.store.list("workload")).items if isinstance(each, Workload)}


async def runs(world: World) -> list[Workload]:
    return [each for each in (await workloads(world)).values() if each.spec.run_of]


def done_after(seconds: float, world: World) -> Any:
    def behave(instance: Instance) -> InstanceStatus | None:
        if world.clock.now() - instance.status.since < seconds:
            return None
        return InstanceStatus(phase=Phase.SUCCEEDED, exit_code=0, since=world.clock.now())

    return behave


async def test_runs_begin_at_their_times_and_the_old_ones_are_forgotten() -> None:
    async with World() as world:
        await world.add_nodes("n1")
        world.nodes["n1"].behave = done_after(20, world)
        await world.apply(nightly(keep=2))
        await world.run(26 * 60, step=5)
        found = sorted(await runs(world), key=lambda each: each.meta.created_at)
        assert [each.status.phase for each in found] == ["Succeeded", "Succeeded"]
        for each in found:
            begun = datetime.fromtimestamp(each.meta.created_at, UTC)
            assert begun.minute % 5 == 0
            assert each.meta.name == f"nightly-{begun:%Y%m%d%H%M}"
        status = (await workloads(world))["nightly"].status
        assert (status.phase, status.running, status.succeeded) == ("Scheduled", 0, 2)
        assert 0 < status.next_at - world.clock.now() <= 300
        assert not [each for each in world.instances() if each.spec.workload == "nightly"], "it has only runs"


async def test_a_run_goes_on_over_a_restart_of_the_controllers_and_is_begun_once() -> None:
    async with World() as world:
        await world.add_nodes("n1")
        world.nodes["n1"].behave = done_after(400, world)
        await world.apply(nightly(overlap="allow", missed="run"))
        for _ in range(6):
            await world.run(130, step=5)
            await world.kill("controllers")
            await world.kill("their recorder")
            await world.run(20, step=5)
            world.start_controllers()
            await settle()
        names = [each.meta.name for each in await runs(world)]
        assert len(names) == len(set(names)) >= 2


async def test_missed_runs_are_made_up_for_once() -> None:
    async with World() as world:
        await world.add_nodes("n1")
        world.nodes["n1"].behave = done_after(5, world)
        await world.apply(nightly(missed="run", keep=100))
        await world.run(10)
        before = len(await runs(world))
        await world.kill("controllers")
        await world.kill("their recorder")
        await world.run(31 * 60, step=10)
        world.start_controllers()
        await world.run(60)
        assert len(await runs(world)) in {before + 1, before + 2}  # 2: the next one was due within the minute


async def test_deleting_it_ends_its_runs() -> None:
    async with World() as world:
        await world.add_nodes("n1")
        await world.apply(nightly())
        await world.run(6 * 60, step=5)
        assert world.serving_count(next(each.meta.name for each in await runs(world))) == 1
        found = (await workloads(world))["nightly"]
        await world.store.commit(Delete(found.key, found.meta.version))
        await world.run(30)
        assert not await workloads(world)
        assert not [each for each in world.instances() if each.phase is Phase.RUNNING]


async def test_a_batch_that_gets_a_schedule_has_runs_instead_of_instances() -> None:
    async with World() as world:
        await world.add_nodes("n1")
        await world.apply(make_workload("nightly", type="batch"))
        await world.until(lambda: world.serving_count("nightly") == 1)
        await world.apply(nightly())
        await world.run(30)
        assert not [each for each in world.instances() if not each.phase.over]
