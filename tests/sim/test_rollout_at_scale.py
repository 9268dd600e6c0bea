"""A large service goes to a new release: within its bounds at every step, in minutes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from mandor.controllers import replicas
from mandor.controllers.writer import split
from mandor.errors import Conflict
from mandor.model.instance import Instance
from mandor.model.phase import may_move
from mandor.store.base import Put
from tests.scenarios.make import make_workload
from tests.scenarios.world import World


class Fleet(World):
    """Nodes whose agents report in one commit."""

    async def _agents(self) -> None:
        reports = []
        for each in self.all(Instance):
            node = self.nodes.get(each.node)
            status = node.report(each, self.clock.now()) if node is not None else None
            if status is not None and may_move(each.phase, status.phase):
                reports.append(Put(each.reported(status)))
        for chunk in split(reports):
            try:
                await self.store.commit(*chunk)
            except Conflict:
                continue  # next time


async def roll(count: int, nodes: int) -> tuple[int, int, float]:
    """The fewest that served, the most there were, and the seconds it took on the clock of the world."""
    async with Fleet() as world:
        await world.add_nodes(*(f"n{number}" for number in range(nodes)), cpu=64)
        update = {"order": "stop-first", "max_unavailable": "5%", "min_healthy": "5s"}
        await world.apply(make_workload("web", replicas=count, cpu="1m", memory="1Mi", update=update))

        def through(release: str) -> bool:
            rollout = world.workload("web").status.rollout
            return rollout is not None and rollout.phase == "Done" and rollout.release == release

        await _until(world, lambda: through("web.1"))
        fewest, most, begun = count, 0, world.clock.now()

        def look() -> None:
            nonlocal fewest, most
            members = world.all(Instance)
            fewest = min(fewest, sum(replicas.serving(each) for each in members))
            most = max(most, sum(not replicas.ended(each) for each in members))

        world.checks.append(look)
        await world.apply(make_workload("web", replicas=count, cpu="1m", memory="1Mi", update=update, env={"V": "2"}))
        await _until(world, lambda: through("web.2"))
        assert {each.spec.release for each in world.all(Instance)} == {"web.2"}
        return fewest, most, world.clock.now() - begun


async def _until(world: World, reached: Callable[[], bool]) -> None:
    for _ in range(900):
        if reached():
            return
        await world.run(1, step=1)
    raise AssertionError(f"not within 15 minutes: {world.workload('web').status}")


@pytest.mark.slow
@pytest.mark.req("S2-16", "S0-16")
@pytest.mark.parametrize(("count", "nodes"), [(5000, 500)])
async def test_a_large_service_is_rolled_out_in_minutes_and_never_below_its_bound(count: int, nodes: int) -> None:
    began = time.process_time()
    fewest, most, seconds = await roll(count, nodes)
    print(f"{count} on {nodes}: {seconds:.0f} s, fewest {fewest}, most {most}, CPU {time.process_time() - began:.1f} s")
    assert fewest >= count * 95 // 100
    assert most <= count
    assert seconds < 900
