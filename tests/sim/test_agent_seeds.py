"""Random faults by seed: invariants after every step and at the end."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mandor.model.instance import Instance
from mandor.model.phase import Phase
from mandor.store.base import Delete
from tests.unit.agent.world import World, open_world

STEPS = 60
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "flaky": {"options": {"fake": {"after": "20s", "exit_code": 1, "chance": 0.5}}, "restart": {"attempts": 50}},
    "slow": {"options": {"fake": {"start_delay": "7s", "slow": "1s", "stop_delay": "3s"}}},
    "stubborn": {"options": {"fake": {"ignore_stop": True}}, "stop": {"grace": "4s"}},
    "moody": {"options": {"fake": {"down_starts": 2}}},
    "once": {"type": "batch", "options": {"fake": {"after": "15s"}}},
}


class RandomRun:
    """A run of one seed: a world and random events."""

    def __init__(self, world: World, seed: int) -> None:
        random.seed(seed)  # The agent rolls dice, too: for its pauses.
        self.world, self.random = world, random.Random(seed)
        self.count = 0
        self.cut = self.down = False

    async def begin(self) -> None:
        for name, kind in KINDS.items():
            await self.world.apply(name, **kind)

    async def happen(self) -> None:
        await getattr(self, "_" + self.random.choice(_EVENTS))()
        await self.world.pass_time(self.random.choice([0.1, 1, 5, 15]), step=0.5)
        await self.check()

    async def instances(self) -> list[Instance]:
        return [each for each in (await self.world.store.list("instance")).items if isinstance(each, Instance)]

    async def _order(self) -> None:
        if len(await self.instances()) < 12:
            await self.world.order(self.random.choice(list(KINDS)), self.count)
            self.count += 1

    async def _stop(self) -> None:
        found = [each for each in await self.instances() if each.spec.stop is None]
        if found:
            await self.world.stop_order(self.random.choice(found).meta.name)

    async def _collect(self) -> None:
        for each in await self.instances():
            if each.phase.over:
                await self.world.store.commit(Delete(each.key, each.meta.version))

    async def _restart(self) -> None:
        await self.world.kill_agent()
        await self.world.clock.advance(self.random.choice([0, 1, 30]))
        await self.world.boot_agent()
        if self.down:
            self.world.engine.down()

    async def _wire(self) -> None:
        self.cut = not self.cut
        (self.world.wire.cut if self.cut else self.world.wire.mend)()

    async def _engine(self) -> None:
        self.down = not self.down
        (self.world.engine.down if self.down else self.world.engine.up)()

    async def _crash(self) -> None:
        live = [record.unit for record in self.world.units.all()]
        if live:
            self.world.engine.end(self.random.choice(live), self.random.choice([0, 1, 137]))

    async def check(self) -> None:
        now = self.world.clock.now()
        live = [record.unit for record in self.world.units.all() if record.observed(now).phase != "exited"]
        twice = [task for task, count in Counter((unit.uid, unit.task) for unit in live).items() if count > 1]
        assert twice == [], "never two live units of one task"
        starts = Counter(self.world.starts)
        assert [unit for unit, count in starts.items() if count > 1] == [], "one token is started once"
        for each in await self.instances():
            if each.phase.over:
                assert each.meta.uid not in {unit.uid for unit in live}, "what is over does not run"

    async def end(self) -> None:
        """All faults stop: both sides agree in the end."""
        self.world.wire.mend()
        self.world.engine.up()
        await self.world.pass_time(400, step=2)
        await self.check()
        live = {unit.uid for unit in await self.world.live()}
        for each in await self.instances():
            if each.spec.stop is not None:
                assert each.phase.over, each
            elif each.phase is Phase.RUNNING:
                assert each.meta.uid in live
            else:
                assert each.phase.over or each.status.restarts > 0, each
        known = {each.meta.uid for each in await self.instances()}
        assert live <= known
        assert {record.unit.uid for record in self.world.units.all()} <= known


_EVENTS = ["order", "order", "order", "stop", "collect", "restart", "wire", "engine", "crash", "crash"]


@pytest.mark.req("S0-17", "S0-27", "S0-28", "S0-29")
@pytest.mark.parametrize("seed", range(8))
async def test_after_random_faults_nothing_runs_twice_and_states_agree(tmp_path: Path, seed: int) -> None:
    async with open_world(tmp_path) as world:
        run = RandomRun(world, seed)
        await run.begin()
        for _ in range(STEPS):
            await run.happen()
        await run.end()
