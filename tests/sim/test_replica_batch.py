"""A flood of copies that are decided in one go ends as it would have ended one by one."""

from __future__ import annotations

import pytest

from mandor.model.phase import Phase
from mandor.scheduler.replica_batch import ReplicaBatch
from tests.scenarios.make import make_workload
from tests.scenarios.world import World


async def flooded() -> dict[str, str]:
    """Return the placements of a backlog that exceeds the capacity when a scheduler starts."""
    async with World() as world:
        world.checks = [world.check_capacity, world.check_count]
        await world.add_nodes(*(f"n{index}" for index in range(7)), cpu=4, memory=16 * 1024**3)
        await world.run(2)
        await world.kill("scheduler")
        await world.kill("its recorder")
        await world.apply(make_workload("web", replicas=120, cpu="100m"))
        await world.apply(make_workload("db", replicas=60, cpu="150m", memory="500Mi"))
        await world.apply(make_workload("odd", replicas=45, cpu="170m", placement={"where": [{"rule": "name != n3"}]}))
        await world.run(2)
        world.start_scheduler()
        await world.run(3)
        waiting = [each for each in world.instances() if each.phase is Phase.PENDING]
        assert waiting
        assert len(waiting) < 60
        return {each.meta.name: each.node for each in world.instances()}


@pytest.mark.req("S3-20")
async def test_a_flood_in_one_go_ends_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    follow, together = ReplicaBatch.follow, 0

    def counted(self: ReplicaBatch, *given: object) -> object:
        nonlocal together
        made, others = follow(self, *given)  # type: ignore[arg-type]
        together += len(made)
        return made, others

    monkeypatch.setattr(ReplicaBatch, "follow", counted)
    found = await flooded()
    assert together > 100

    monkeypatch.setattr(ReplicaBatch, "follow", lambda *_: ([], []))
    assert await flooded() == found
