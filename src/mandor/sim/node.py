"""A simulated node: the real agent on a simulated machine, reaching the store over a connection that can be cut."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from pathlib import Path
from typing import Any

from mandor.agent.agent import Agent
from mandor.agent.direct import DirectLink
from mandor.agent.link import Heartbeat
from mandor.agent.probes import run_probe
from mandor.agent.settings import AgentSettings
from mandor.engines.base import Engine, Observed, UnitPhase
from mandor.model.meta import Meta
from mandor.model.node import Node, NodeSpec, Taint
from mandor.model.record import ClusterSpec
from mandor.model.resources import Resources
from mandor.model.task import Probe
from mandor.sim.connection import StoreConnection
from mandor.sim.engine import Fate, SimEngine, SimUnits, no_fate
from mandor.sim.journal import MemoryJournal
from mandor.sim.machine import NOTHING, SimMachine, UnitUsage
from mandor.sim.virtual import VirtualClock
from mandor.store.base import Store

FAKE = "fake"
KILLED = 137
IMAGE_ENGINES = frozenset({"docker", "podman", "cri", "incus", FAKE})
"""Simulated engines that run images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Properties of a simulated node."""

    name: str
    has: Resources
    overhead: Resources = NOTHING
    reserved: Resources = NOTHING
    labels: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    pool: str = "default"
    taints: tuple[Taint, ...] = ()
    engines: tuple[str, ...] = ("docker", "process")
    host_paths: Sequence[str] = ()
    """Host paths that tasks may use."""

    def made(self) -> Node:
        """Return the node object with its labels, pool and taints."""
        spec = NodeSpec(pool=self.pool, taints=self.taints, reserved=self.reserved)
        return Node(meta=Meta(name=self.name, labels=dict(self.labels)), spec=spec)


async def inline(work: Callable[..., Any], /, *args: Any) -> Any:
    """Run blocking work at once: simulated disks are never slow."""
    return work(*args)


class SimLink(DirectLink):
    """Delivers heartbeats to the simulated server, also if the answer is lost."""

    def __init__(self, connection: StoreConnection, node: str, hear: Callable[[str, Heartbeat], None]) -> None:
        super().__init__(connection, node)
        self._connection, self._hear = connection, hear

    async def heartbeat(self, beat: Heartbeat) -> ClusterSpec:
        if not self._connection.clear:
            await self._connection.send()
        self._hear(self._node, beat)
        return await self.cluster()


async def answer_when_running(probe: Probe, observed: Observed, engine: Engine, ports: Mapping[str, int]) -> str:
    """Answer probes of a running program with success; command probes are run by the engine."""
    return await run_probe(probe, observed, engine, ports) if probe.command is not None else ""


class SimNode:
    """`clock`: the clock of the node, which a fault may set."""

    def __init__(
        self,
        kind: NodeKind,
        store: Store,
        clock: VirtualClock,
        unit_usage: UnitUsage,
        beat: Callable[[str, Heartbeat], None],
        data: Path,
        *,
        chance: random.Random | None = None,
        fate: Fate = no_fate,
        **settings: Any,
    ) -> None:
        self._fate = fate
        self.kind, self.clock, self._unit_usage, self._beat = kind, clock, unit_usage, beat
        self.connection = StoreConnection(store, chance=chance, late=True)
        facts = {"os": "linux", "arch": "amd64", **kind.facts}
        self.machine = SimMachine(clock, kind.has, kind.overhead, facts_known=facts, host_paths=kind.host_paths)
        self.machine.used, self.machine.changed = self._used, self._mark_changed
        self.engines: dict[str, SimEngine] = {}
        self._units: dict[str, SimUnits] = {}
        self._settings = AgentSettings(
            name=kind.name, data=data / kind.name, address="10.0.0.1", host_paths=kind.host_paths, **settings
        )
        self._journal = MemoryJournal()
        self._boots = 0
        self._slowness = 1.0
        self._task: asyncio.Task[None] | None = None
        self.agent: Agent | None = None
        self._parts: list[Resources] = []
        self._sum = Resources()
        self.changed = False
        """The machine has changed since the last tick of the cluster."""
        self._empty_disk()

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def up(self) -> bool:
        """Whether the machine has power."""
        return self._task is not None

    def _empty_disk(self) -> None:
        self._units = {name: SimUnits() for name in self.kind.engines}

    def _used(self) -> tuple[Resources, float]:
        found = [each.used() for each in self.engines.values()]
        parts = [used for used, _ in found]
        if not (len(parts) == len(self._parts) and all(map(is_, parts, self._parts))):
            self._parts, self._sum = parts, sum(parts, Resources())
        return self._sum, min((until for _, until in found), default=0.0)

    # What can happen to it.

    def boot(self) -> None:
        """Boot the machine: no unit runs, and the journal is kept."""
        self._boots += 1
        self.machine.facts_known = {**self.machine.facts_known, "boot": f"boot-{self._boots}"}
        self._empty_disk()
        self.start_agent()

    async def crash(self) -> None:
        """Cut the power: all units are gone."""
        await self.kill_agent()
        self.engines = {}
        self.machine.used = self._used
        self.machine.look_again()
        self._mark_changed()

    def start_agent(self) -> None:
        self.engines = {
            name: SimEngine(
                self.clock,
                units,
                self._unit_usage,
                images=name in IMAGE_ENGINES,
                own_options=name == FAKE,
                fate=self._fate,
                changed=self.machine.look_again,
                exists=self.machine.has_path,
            )
            for name, units in self._units.items()
        }
        self.machine.used = next(iter(self.engines.values())).used if len(self.engines) == 1 else self._used
        self.machine.look_again()
        self.slow_down(self._slowness)
        self.agent = Agent(
            self._settings,
            self.connection,
            SimLink(self.connection, self.name, self._beat),
            self.engines,
            self.clock,
            journal=self._journal,
            blocking=inline,
            boot=f"boot-{self._boots}",
            locate=lambda: "10.0.0.1",
            machine=self.machine,
            run_probe=answer_when_running,
        )
        self._task = asyncio.ensure_future(self.agent.run())

    async def kill_agent(self) -> None:
        """Kill the agent; units keep running."""
        task, self._task = self._task, None
        if task is None:
            return
        if task.done():
            task.result()
        task.cancel()
        await asyncio.wait({task})
        for engine in self.engines.values():
            await engine.close()

    async def restart_agent(self) -> None:
        await self.kill_agent()
        self.start_agent()

    def engines_down(self) -> None:
        for engine in self.engines.values():
            engine.down()

    def kill(self, uid: str) -> bool:
        """Kill a unit of the instance; return False if none runs here."""
        for engine in self.engines.values():
            for record in engine.state.all():
                if record.unit.uid == uid and record.observed(self.clock.monotonic()).phase is UnitPhase.RUNNING:
                    engine.end(record.unit, KILLED, reason="Signalled", message="SIGKILL")
                    return True
        return False

    def mend(self) -> None:
        """Repair the connection, the engines and their speed."""
        self.connection.mend()
        self.slow_down(1.0)
        for engine in self.engines.values():
            engine.up()

    def slow_down(self, times: float) -> None:
        self._slowness = times
        for engine in self.engines.values():
            engine.slowness = times

    def take(self, others: Resources) -> None:
        """Set the usage of other programs on the machine."""
        self.machine.take(others)

    def _mark_changed(self) -> None:
        self.changed = True

    def look_again(self) -> None:
        """Recompute the usage of all units."""
        for engine in self.engines.values():
            engine.look_again()

    def check(self) -> None:
        """Raise the error of an agent that has failed."""
        if self._task is not None and self._task.done():
            self._task.result()
