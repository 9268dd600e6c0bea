"""The scheduler's table against the store: alike whatever has happened, and a difference is found and named."""

from __future__ import annotations

import asyncio
import random

import pytest

from mandor.lib.clock import settle
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.table_report import TableReport
from mandor.placement.framework.request import Shape
from tests.scenarios.make import make_node, make_template, make_workload
from tests.scenarios.world import World


async def compared(world: World) -> TableReport:
    assert world.scheduler is not None
    task = asyncio.ensure_future(world.scheduler.compare_table())
    for _ in range(40):
        await settle(20)
        if task.done():
            break
        await world.clock.advance(0.3)
    return await task


@pytest.mark.req("S0-18", "S0-26")
async def test_table_and_store_show_the_same_after_restarts_losses_and_roll_outs() -> None:
    dice = random.Random(7)
    async with World() as world:
        await world.add_nodes("n1", "n2", "n3", cpu=4)
        for step in range(10):
            await world.apply(make_workload("web", replicas=dice.randrange(6), cpu="1", env={"STEP": str(step)}))
            await world.apply(make_workload("ring", replicas=3, cpu="0.5", gang={"timeout": "10s"}))
            world.nodes[dice.choice(["n1", "n2"])].alive = dice.random() < 0.7
            if step % 4 == 3:
                await world.kill("scheduler")
                await world.kill("its recorder")
                world.start_scheduler()
            await world.run(dice.randrange(1, 20))
            report = await compared(world)
            assert report.differences == ()
        assert report.nodes == 3


async def test_differences_are_found_and_named() -> None:
    async with World() as world:
        await world.add_nodes("n1", "n2", cpu=4)
        await world.apply(make_workload("web", replicas=2, cpu="1"))
        await world.until(lambda: world.serving_count("web") == 2)
        assert world.scheduler is not None
        table = world.scheduler.view.table
        table.drop_allocation(Key(Instance.kind, "default", "web-0"))
        table.set_allocation(Key(Instance.kind, "default", "ghost-0"), "n2", Shape.of(make_template(cpu=1)))
        table.set_node(make_node("n3"))
        report = await compared(world)
        said = {(each.about, each.table, each.store) for each in report.differences}
        where = world.instance("web-0").node
        assert said == {
            ("instance default/web-0", "not counted", f"on {where}"),
            ("instance default/ghost-0", "on n2", "on no node"),
            ("node n3", "version 0", "not there"),
        }


async def test_a_column_that_does_not_add_up_is_found() -> None:
    async with World() as world:
        await world.add_nodes("n1", cpu=4)
        await world.apply(make_workload("web", replicas=1, cpu="1"))
        await world.until(lambda: world.serving_count("web") == 1)
        assert world.scheduler is not None
        free = world.scheduler.view.table.snapshot().free[0]
        free.flags.writeable = True
        free[0] += 500
        report = await compared(world)
        assert [(each.about, each.table, each.store) for each in report.differences] == [
            ("node n1", "3500 cpu free", "3000 by its instances")
        ]
