"""The simulator's control plane on a manual clock, with scripted nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from mandor.api.tallies import Tallies
from mandor.controllers.node_plan import NodeTimes
from mandor.errors import Unavailable
from mandor.lib.clock import ManualClock, settle
from mandor.model.autoscale import Metric
from mandor.model.instance import Instance
from mandor.model.node import NodePhase
from mandor.model.usage import InstanceUsage
from mandor.sim import invariant
from mandor.sim.scripted import ScriptedNode, ScriptedNodes
from mandor.sim.world import World as PlainWorld
from mandor.store.memory import MemoryStore
from tests.scenarios.make import make_node


class World(PlainWorld):
    def __init__(self, *, times: NodeTimes | None = None, seed: str = "") -> None:
        self.clock = ManualClock()
        super().__init__(self.clock, MemoryStore(clock=self.clock), times=times, seed=seed)
        self._scripted = ScriptedNodes(self, self.clock)
        self.serving = True
        """The API server lives and hears the nodes."""
        self.tallies = Tallies("s1")
        self.usage: Callable[[Instance], InstanceUsage] | None = None
        """Usage of a running instance; None: heartbeats contain no usage."""
        self.metric: Callable[[Metric], float] | None = None
        self.controller_options["ask"] = self._ask

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await settle()
        return self

    @property
    def nodes(self) -> dict[str, ScriptedNode]:
        return self._scripted.by_name

    async def add_nodes(self, *names: str, **fields: Any) -> None:
        for name in names:
            self.nodes[name] = ScriptedNode(name)
            await self.add(make_node(name, phase=NodePhase.UNKNOWN, **fields))

    # Time.

    async def run(self, seconds: float, step: float = 0.5) -> None:
        """Advance time in steps; agents act and invariants are checked at every step."""
        for _ in range(round(seconds / step)):
            if self.serving:
                await self._scripted.beat()
                await self._tally()
                await self._agents()
            await self.clock.advance(step)
            await settle(100)
            self.check()

    async def _ask(self, metric: Metric) -> float:
        if self.metric is None:
            raise Unavailable(f"{metric.url} does not answer")
        return self.metric(metric)

    async def _tally(self) -> None:
        """As an API server does with the usage that heartbeats tell."""
        if self.usage is None:
            return
        for name, node in self.nodes.items():
            here = [each for each in self.instances() if each.node == name and each.meta.uid in node.running]
            told = {f"{each.meta.namespace}/{each.meta.name}": self.usage(each) for each in here}
            self.tallies.record(name, told if node.alive else {})
        writes = await self.tallies.writes(self.store, self.clock.monotonic())
        if writes:
            await self.store.commit(*writes)

    async def _agents(self) -> None:
        await self._scripted.act()

    async def until(self, reached: Callable[[], bool], seconds: float = 300) -> None:
        for _ in range(round(seconds * 2)):
            if reached():
                return
            await self.run(0.5)
        raise AssertionError(f"not reached within {seconds} seconds: {self.phases()}")

    # What must always hold.

    def check_capacity(self) -> None:
        invariant.check_capacity(self)

    def check_count(self) -> None:
        invariant.check_count(self)

    def check_volumes(self) -> None:
        invariant.check_volumes(self)
