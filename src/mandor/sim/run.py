"""One run of a scenario: one strategy with one seed."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mandor.agent.pressure import DEFAULT_THRESHOLDS as THRESHOLDS
from mandor.controllers.node_plan import NodeTimes
from mandor.importers.report import NO_REPORT, Report
from mandor.model.instance import Instance
from mandor.model.manifest import Document
from mandor.model.meta import Key, Object
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.resources import Resources
from mandor.model.volume import may_be_allowed
from mandor.model.workload import Workload
from mandor.scheduler.reload import ConfigSource
from mandor.sim.cluster import TICK_SECONDS, SimCluster
from mandor.sim.expectation_check import check_expectations
from mandor.sim.history import seconds_without
from mandor.sim.history_recorder import HistoryRecorder
from mandor.sim.node import NodeKind
from mandor.sim.phase_end import PhaseEndState
from mandor.sim.recorded import Recorded
from mandor.sim.result import NodeState, PhaseResult, RunResult, Waiting, WorkloadState
from mandor.sim.scenario import Scenario, Strategy, TimelineEntry
from mandor.sim.sim_provisioner import SimProvisioner
from mandor.sim.strategy import revised
from mandor.sim.timeline_runner import TimelineRunner
from mandor.sim.virtual import VirtualClock, run_virtual

NEVER_SECONDS = 10.0 * 365 * 86_400


@dataclass(frozen=True, slots=True)
class LoadedScenario:
    """A scenario with its manifests read."""

    scenario: Scenario
    path: Path
    first: Sequence[Object]
    """Objects submitted at the start."""
    later: Sequence[Sequence[Object]]
    """Objects that each timeline entry submits."""
    imported: Report = NO_REPORT
    """Report about keys of imported files that were not mapped."""
    recorded: Recorded | None = None
    """The recording, for a replay."""
    sources: Mapping[str, ConfigSource] = field(default_factory=dict)
    """Scheduler configurations without a file, by strategy."""
    places: Mapping[Key, Document] = field(default_factory=dict)
    """File and line of objects, by key, for errors."""
    again: "Callable[[], LoadedScenario] | None" = None
    """Reads the scenario in another process; absent: from `path`."""

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def workloads(self) -> list[Workload]:
        return [each for part in (self.first, *self.later) for each in part if isinstance(each, Workload)]

    @property
    def kinds(self) -> list[NodeKind]:
        return [
            NodeKind(
                name=name,
                has=Resources(int(line.cpu), int(line.memory), int(line.disk), dict(line.devices)),
                overhead=line.overhead.resources,
                reserved=line.reserved.resources,
                labels=line.labels,
                facts=line.facts,
                pool=line.pool,
                taints=line.taints,
                engines=line.engines or self.engines,
                host_paths=self.host_paths if line.host_paths is None else line.host_paths,
            )
            for line in self.scenario.nodes
            for name in line.names
        ]

    def arrivals(self, strategy: Strategy, seed: int) -> list[tuple[float, Sequence[Object]]]:
        """Return the first objects with their times: others first, then workloads in random order at random times."""
        objects = revised(self.first, strategy)
        workloads = [each for each in objects if isinstance(each, Workload)]
        arrival = self.scenario.arrival
        chance = random.Random(seed)
        if arrival.shuffle and seed:
            chance.shuffle(workloads)
        most = min(float(arrival.within), self.scenario.phases[0][2] / 2)
        moments = sorted(chance.uniform(0, most) for _ in workloads)
        others = [each for each in objects if not isinstance(each, Workload)]
        return [(0.0, others), *((at, [each]) for at, each in zip(moments, workloads, strict=True))]

    @property
    def off(self) -> set[str]:
        """Nodes without power at the start."""
        return {name for line in self.scenario.nodes if line.off for name in line.names}

    def cluster(self, strategy: Strategy, seed: int, *, unreliable: bool = False, name: str = "") -> SimCluster:
        """Return a cluster without nodes and workloads. `name`: the name of the strategy."""
        given = _config(self.folder / strategy.profile) if strategy.profile else None
        restore = 60.0 if strategy.restore else NEVER_SECONDS
        clock, scenario = VirtualClock(), self.scenario
        if self.recorded is not None:
            clock.jump(self.recorded.began_at - clock.now())
        cluster = SimCluster(
            clock,
            seed=seed,
            config=self.sources.get(name, given),
            restore_seconds=restore,
            unreliable=unreliable,
            times=NodeTimes(
                suspect_seconds=scenario.suspect_after, lost_seconds=scenario.lost_after, tick_seconds=TICK_SECONDS
            ),
        )
        cluster.controller_options["machines"] = SimProvisioner(cluster).source
        cluster.endings = scenario.endings
        usage = scenario.usage
        cluster.usage_rules.by_workload = {name: each for name, each in usage.items() if name != "default"}
        cluster.usage_rules.usual = usage.get("default", cluster.usage_rules.usual)
        return cluster

    @property
    def host_paths(self) -> tuple[str, ...]:
        """Host paths that the workloads use."""
        groups = (group for each in self.workloads for group in each.spec.groups.values())
        paths = {volume.path for group in groups for volume in group.volumes.values() if volume.path is not None}
        return tuple(sorted(filter(may_be_allowed, paths)))

    @property
    def engines(self) -> tuple[str, ...]:
        """Engines that the workloads need: named ones, or one for images and one for commands."""
        groups = [group for each in self.workloads for group in each.spec.groups.values()]
        named = {name for group in groups for name in group.engine}
        tasks = [task for group in groups if not group.engine for task in group.tasks.values()]
        if any(task.image is not None for task in tasks) or not named:
            named.add("docker")
        if any(task.image is None for task in tasks):
            named.add("process")
        return tuple(sorted(named))


@cache
def _config(file: Path) -> ConfigSource:
    """Return the scheduler configuration of a file, cached for all seeds."""
    return ConfigSource(file).once()


ExtraTask = Callable[[SimCluster], Coroutine[Any, Any, None]]


def run_scenario(
    loaded: LoadedScenario, name: str, seed: int, *, story: bool = True, extra: ExtraTask | None = None
) -> RunResult:
    """
    Run one strategy with one seed.

    `story`: the result includes the intervals in which instances ran, for the timeline of the report.
    `extra`: an additional task that runs in the cluster until the end.
    """
    return run_virtual(_Run(loaded, name, loaded.scenario.plans[name], seed).run(story=story, extra=extra))


class _Run:
    def __init__(self, loaded: LoadedScenario, name: str, strategy: Strategy, seed: int) -> None:
        self._loaded, self._name, self._strategy, self._seed = loaded, name, strategy, seed
        self._scenario = loaded.scenario
        self._peak: dict[str, float] = {}
        self._looked_at: dict[str, object] = {}
        """Last readings per node, used to skip unchanged ones."""
        self._short_since: dict[str, float] = {}
        self._short: dict[str, float] = {}

    async def run(self, *, story: bool, extra: ExtraTask | None) -> RunResult:
        cluster = self._loaded.cluster(self._strategy, self._seed, name=self._name)
        async with cluster:
            self._cluster = cluster
            self._history = HistoryRecorder(cluster.clock, cluster.clock.monotonic())
            cluster.start("history", self._history.follow(cluster.store))
            if extra is not None:
                cluster.start("extra", extra(cluster))
            self._timeline = TimelineRunner(
                cluster, self._history, stored=self._scenario.stored, places=self._loaded.places
            )
            await cluster.add_nodes(self._loaded.kinds, off=self._loaded.off)
            self._look_at_hosts()
            cluster.looker = self._look_at_hosts
            phases = await self._live()
            await self._timeline.close()
            history = self._history
            failures = check_expectations(self._scenario.expect, phases, history, self._name, self._seed)
            history.close()
            return RunResult(
                strategy=self._name,
                seed=self._seed,
                digest=history.digest,
                phases=tuple(phases),
                failures=tuple(failures),
                stays=tuple(history.stays) if story else (),
                notes=tuple(history.notes) if story else (),
                ready={
                    name: tuple(zip(steps.times, steps.values, strict=True))
                    for name, steps in (history.ready.items() if story else ())
                },
            )

    # Time.

    async def _live(self) -> list[PhaseResult]:
        arriving = asyncio.ensure_future(self._arrive())
        moments = list(zip(self._scenario.timeline, self._loaded.later, strict=True))
        results = []
        for name, begin, end in self._scenario.phases:
            if arriving.done():
                await arriving  # A manifest that a server would refuse ends the run.
            self._peak, self._short = {}, {}
            self._looked_at.clear()
            self._cluster.look_on()
            while moments and moments[0][0].at < end:
                entry, objects = moments.pop(0)
                await self._until(entry.at)
                await self._moment(entry, objects)
            await self._until(end)
            self._cluster.check()
            results.append(self._result(name, begin, end))
        await arriving
        return results

    async def _moment(self, entry: TimelineEntry, objects: Sequence[Object]) -> None:
        if entry.phase:
            self._history.note("phase", entry.phase)
        await self._timeline.submit(revised(objects, self._strategy))
        await self._timeline.happen(entry)

    async def _arrive(self) -> None:
        for at, objects in self._loaded.arrivals(self._strategy, self._seed):
            await self._until(at)
            await self._timeline.submit(objects)

    async def _until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self._history.now))

    def _look_at_hosts(self) -> bool:
        """Record peaks and the time below thresholds; return whether any node is below one."""
        looked_at = self._looked_at
        now = self._history.now
        for name, node in self._cluster.nodes.items():
            readings = node.machine.last if node.up else ()
            if readings is looked_at.get(name) and name not in self._short_since:
                continue
            looked_at[name] = readings
            shares = {each.signal: each.share for each in readings}
            if "memory" in shares:
                self._peak[name] = max(self._peak.get(name, 0.0), 1 - shares["memory"])
            short = any(share < THRESHOLDS[signal].soft for signal, share in shares.items())
            if not short:
                self._short_since.pop(name, None)
                continue
            since = self._short_since.setdefault(name, now)
            self._short[name] = max(self._short.get(name, 0.0), now - since)
        return bool(self._short_since)

    # Results.

    def _result(self, name: str, begin: float, end: float) -> PhaseResult:
        settled, history = PhaseEndState(self._cluster), self._history
        pending = sorted(settled.pending, key=lambda each: (-each.priority, each.instance.meta.name))
        return PhaseResult(
            name=name,
            begin=begin,
            end=end,
            nodes={each: self._node(each, settled) for each in self._cluster.nodes},
            workloads=self._workloads(settled, begin, end),
            pending=tuple(
                Waiting(instance=each.instance.meta.name, priority=each.priority, reason=each.instance.status.message)
                for each in pending
            ),
            preemptions=tuple(each for each in history.preemptions if begin <= each.at < end),
            relaxed=tuple((who, rule) for at, who, rule in history.relaxed if begin <= at < end),
            evictions=tuple((who, node) for at, who, node in history.evictions if begin <= at < end),
            crossing_percent=self._crossing(),
            inversions=tuple(settled.inversions()),
            blocked=tuple(settled.blocked_softly()),
            short_seconds={name: round(each, 3) for name, each in sorted(self._short.items())},
        )

    def _node(self, name: str, settled: PhaseEndState) -> NodeState:
        node = self._cluster.find(Node, name, "")
        assert node is not None
        sim, asked, may = self._cluster.nodes[name], settled.used(name), node.allocatable
        memory = sim.machine.has.memory_bytes
        return NodeState(
            ready=node.status.phase.value == "Ready",
            cpu_percent=_percent(asked.cpu_milli, may.cpu_milli),
            memory_percent=_percent(asked.memory_bytes, may.memory_bytes),
            used_percent=_percent(sim.machine.in_use.memory_bytes, memory) if sim.up else 0.0,
            peak_percent=round(100 * self._peak.get(name, 0.0), 1),
            instances=tuple(settled.running(name)),
        )

    def _workloads(self, settled: PhaseEndState, begin: float, end: float) -> dict[str, WorkloadState]:
        found, history = {}, self._history
        for name in sorted(history.wanted):
            down, short = seconds_without(history.running[name], history.wanted[name], begin, end)
            found[name] = WorkloadState(
                priority=settled.priority_of(name),
                wanted=history.wanted[name].at(end),
                running=history.running[name].at(end),
                down_seconds=round(down, 3),
                short_seconds=round(short, 3),
            )
        return found

    def _crossing(self) -> float | None:
        """Return the percentage of traffic between different nodes."""
        total = crossing = 0.0
        nodes: dict[str, list[str]] = {}
        for one in self._cluster.all(Instance):
            if one.phase is Phase.RUNNING:
                nodes.setdefault(one.spec.workload, []).append(one.node)
        for each in self._scenario.traffic:
            pairs = [(a, b) for a in nodes.get(each.source, ()) for b in nodes.get(each.to, ())]
            if pairs:
                total += each.weight
                crossing += each.weight * sum(a != b for a, b in pairs) / len(pairs)
        if not self._scenario.traffic:
            return None
        return round(100 * crossing / total, 1) if total else 0.0


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 1) if whole else 0.0
