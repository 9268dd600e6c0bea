"""Whatever plugins do: capacity is respected, no instance is on two nodes, and each reservation ends once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.lib.clock import ManualClock
from mandor.placement.built_in import DEFAULTS
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.handle import Handle
from mandor.placement.framework.plugin_factory import Registered, make_plugin
from mandor.placement.framework.points import PermitPlugin, Plugin, PostBindPlugin, PreBindPlugin, ReservePlugin, Wait
from mandor.placement.framework.profile import Enabled, Profile
from mandor.placement.framework.request import PlacementRequest
from tests.scenarios.make import make_workload
from tests.scenarios.world import World


class Moody(ReservePlugin, PermitPlugin, PreBindPlugin, PostBindPlugin):
    """Fails, denies, waits, dawdles and rejects others by the dice; keeps books by the state of each placement."""

    name = "Moody"

    def __init__(self, handle: Handle, dice: random.Random, clock: ManualClock) -> None:
        self.handle, self.dice, self.clock = handle, dice, clock
        self.calm = False
        self.begun: Counter[int] = Counter()
        self.ended: Counter[int] = Counter()
        self.states: list[CycleState] = []

    def _chance(self, percent: int) -> bool:
        return not self.calm and self.dice.randrange(100) < percent

    def reserve(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        self.states.append(state)  # so that no other gets its id
        self.begun[id(state)] += 1
        if self._chance(15):
            raise RuntimeError("no")

    def unreserve(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        self.ended[id(state)] += 1

    def permit(self, state: CycleState, request: PlacementRequest, node: str) -> Wait | str | None:
        for each in self.handle.waiting():
            if self.calm or self._chance(30):
                self.handle.approve(each.key, self.name)
            elif self._chance(20):
                self.handle.reject(each.key, self.name)
        if self._chance(15):
            return "no"
        return Wait(self.dice.randrange(8)) if self._chance(40) else None

    async def pre_bind(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        if self._chance(30):
            await self.clock.sleep(self.dice.randrange(6))
        if self._chance(15):
            raise RuntimeError("no")

    def post_bind(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        self.ended[id(state)] += 1


async def play(seed: int) -> None:
    dice = random.Random(seed)
    moody: list[Moody] = []
    world = World(seed=str(seed))

    def profiles(handle: Handle) -> dict[str, Profile]:
        usual: list[Plugin] = [make_plugin(Registered(cls), handle) for cls, _ in DEFAULTS]
        moody.append(Moody(handle, dice, world.clock))
        return {"default": Profile("default", [*map(Enabled, usual), Enabled(moody[-1])])}

    world.scheduler_options = {"profiles": profiles}
    world.checks = [world.check_capacity, world.check_count]
    async with world:
        await world.add_nodes("n1", "n2", cpu=3)
        sizes: dict[str, int] = {}
        for step in range(12):
            deed = dice.randrange(6)
            name = dice.choice(["a", "b", "c"])
            if deed <= 2:
                sizes[name] = dice.randrange(4)
                await world.apply(make_workload(name, replicas=sizes[name], cpu="1"))
            elif deed == 3:
                await world.change_node(dice.choice(["n1", "n2"]), cordoned=dice.random() < 0.5)
            elif deed == 4 and step % 4 == 0:
                await world.kill("scheduler")
                world.start_scheduler()
            await world.run(dice.randrange(1, 8))
        for each in moody:
            each.calm = True
        for node in ("n1", "n2"):
            await world.change_node(node, cordoned=False)
        wanted = min(sum(sizes.values()), 6)
        await world.until(lambda: sum(world.serving_count(name) for name in sizes) >= wanted, seconds=120)
        await world.kill("scheduler")
    for each in moody:
        assert set(each.begun.values()) <= {1}, "one state, one reservation"
        assert each.ended == each.begun, "each ended once, bound or not"


@pytest.mark.req("S1-16", "S1-17", "S1-26", "S1-7")
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_reservation_ends_once_and_no_node_is_overfull(seed: int) -> None:
    asyncio.run(play(seed))
