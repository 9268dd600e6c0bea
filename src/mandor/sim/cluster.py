"""A simulated cluster: the control plane, a receiver of heartbeats, and nodes that run the real agent."""

import itertools
import random
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mandor.agent.link import Heartbeat
from mandor.api.heartbeat import LEASE_SECONDS as USUAL_LEASE_SECONDS
from mandor.api.heartbeat import Heartbeats, Report
from mandor.controllers.garbage_plan import Keep
from mandor.controllers.node_plan import NodeTimes
from mandor.engines.base import Launch, Unit
from mandor.model.instance import Instance
from mandor.model.meta import Meta
from mandor.model.record import Cluster as ClusterObject
from mandor.model.record import ClusterSpec, Namespace, NamespaceSpec
from mandor.model.resources import Resources
from mandor.model.task import Task
from mandor.model.workload import Release, Workload
from mandor.scheduler.last_config import ConfiguredProfiles
from mandor.scheduler.reload import ConfigSource, Configured
from mandor.sim.connection import StoreConnection
from mandor.sim.disturbance import PARTS, Part
from mandor.sim.node import NodeKind, SimNode
from mandor.sim.scenario import Ending
from mandor.sim.usage_rule import UsageRules
from mandor.sim.virtual import VirtualClock, collect_garbage
from mandor.sim.world import World
from mandor.store.base import Store
from mandor.store.memory import MemoryStore

QUIET_SECONDS = 3600.0
"""Seconds between bookmarks of watches. A simulated connection reports its own end, so bookmarks are not needed."""
LEASE_SECONDS = 3600.0
"""Lease of a simulated server in seconds; the server deletes it when it stops."""
TICK_SECONDS = 5.0
"""Seconds between checks for silent nodes and resource pressure; longer than in a real cluster, to save time."""
KEEP = Keep(sweep_seconds=300.0)
"""Retention of old objects; cleaned up less often than in a real cluster, to save time."""
AGENT = {
    "heartbeat_seconds": 10.0,
    "fingerprint_seconds": 300.0,
    "look_seconds": TICK_SECONDS,
    "stall_seconds": 2 * QUIET_SECONDS,
}
BUILT_IN = ConfigSource().once()


class SimCluster(World):
    """A cluster whose whole history is determined by its seed and the timeline."""

    def __init__(
        self,
        clock: VirtualClock,
        *,
        seed: int = 0,
        config: ConfigSource | None = None,
        times: NodeTimes | None = None,
        restore_seconds: float = 60.0,
        unreliable: bool = False,
    ) -> None:
        """
        `seed`: for arrivals, jitter and faults; the scheduler breaks ties as it does in a real cluster.
        `unreliable`: scheduler, controllers and server use connections to the store that can fail, as agents do.
        """
        random.seed(seed)  # Jitter of pauses and heartbeats uses the module's generator.
        self.clock = clock
        self.chance = random.Random(seed)
        store = MemoryStore(clock=clock, new_uid=_counted(), bookmark_seconds=QUIET_SECONDS)
        super().__init__(clock, store, times=times or NodeTimes(tick_seconds=TICK_SECONDS))
        source = config or BUILT_IN
        configured = Configured(source)
        self.scheduler_options = {"profiles": configured.profiles, "pause": configured.pause()}
        self.controller_options = {
            "profiles": ConfiguredProfiles(source),
            "restore_seconds": restore_seconds,
            "keep": KEEP,
        }
        self._server_store: Store = store
        self.connections = (
            [StoreConnection(store, chance=random.Random(self.chance.random())) for _ in PARTS] if unreliable else []
        )
        if unreliable:
            self.scheduler_store, self.controller_store, self._server_store = self.connections
        self._servers = itertools.count(1)
        self.heartbeats = self._new_server()
        self.usage_rules = UsageRules()
        self.nodes: dict[str, SimNode] = {}
        self.looker: Callable[[], bool] = lambda: False
        """Called at a tick after which a machine has changed; called again at the next tick if it returns True."""
        self._look_on = False
        self.endings: Mapping[str, Sequence[Ending]] = {}
        """Ends of programs by workload or instance, one entry per start."""
        self._starts: dict[str, list[Unit]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="mandor-sim-")

    async def __aenter__(self) -> Self:
        await self.add(ClusterObject(meta=Meta(name="cluster"), spec=ClusterSpec("simulated")))
        await self.add(Namespace(meta=Meta(name="default"), spec=NamespaceSpec(level="privileged")))
        await super().__aenter__()
        self.start("heartbeats", self.heartbeats.run())
        self.start("garbage", collect_garbage())
        self.start("machines", self._look_at_machines())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in list(self.nodes.values()):
            await node.kill_agent()
            await node.connection.close()
        await super().__aexit__(kind, error, trace)
        self._folder.cleanup()

    async def add_nodes(self, kinds: Iterable[NodeKind], *, off: Collection[str] = (), **settings: Any) -> None:
        """Add nodes; those named in `off` have no power yet."""
        for kind in kinds:
            await self.add(kind.made())
            node = SimNode(
                kind,
                self.store,
                VirtualClock(),
                self._unit_usage,
                self._receive,
                Path(self._folder.name),
                chance=random.Random(self.chance.random()),
                fate=self._program_end,
                **{**AGENT, **settings},
            )
            self.nodes[kind.name] = node
            if kind.name not in off:
                node.boot()

    def _new_server(self) -> Heartbeats:
        name = f"s{next(self._servers)}"
        # A server that is cut off cannot delete its lease, so that the lease must expire soon.
        lease = USUAL_LEASE_SECONDS if self.connections else LEASE_SECONDS
        return Heartbeats(self._server_store, self.clock, name, "", tick_seconds=TICK_SECONDS, lease_seconds=lease)

    async def restart(self, part: Part) -> None:
        """Kill a part of the control plane and start a new one from the stored state, as a failover does."""
        if part == "scheduler":
            await self.kill("scheduler")
            await self.kill("its recorder")
            self.start_scheduler()
        elif part == "controllers":
            await self.kill("controllers")
            await self.kill("their recorder")
            self.start_controllers()
        else:
            if isinstance(self._server_store, StoreConnection):
                self._server_store.whole = False
            await self.kill("heartbeats")
            if isinstance(self._server_store, StoreConnection):
                self._server_store.whole = True
            self.heartbeats = self._new_server()
            self.start("heartbeats", self.heartbeats.run())

    def _receive(self, node: str, beat: Heartbeat) -> None:
        self.heartbeats.beat(node, Report(cluster=beat.cluster, usage=beat.usage, instances=beat.instances))

    def _unit_usage(self, unit: Unit, launch: Launch) -> Resources:
        instance, task = self._find_task(unit, launch)
        if instance is None or task is None:
            return Resources()
        return self.usage_rules.of(self._written_as(instance), task.resources.request)

    def _program_end(self, unit: Unit, launch: Launch) -> Mapping[str, Any]:
        if not self.endings:
            return {}
        instance, task = self._find_task(unit, launch)
        if instance is None or task is None or task.role != "main":
            return {}
        ends = self.endings.get(instance.meta.name) or self.endings.get(self._written_as(instance))
        if not ends:
            return {}
        starts = self._starts.setdefault(f"{instance.meta.namespace}/{instance.meta.name}/{unit.task}", [])
        if unit not in starts:
            starts.append(unit)
        end = ends[min(starts.index(unit), len(ends) - 1)]
        return {"after": str(end.after), "exit_code": end.exit_code}

    def _written_as(self, instance: Instance) -> str:
        """Return the name of the workload in the scenario; for a scheduled run, the name of its schedule."""
        found = self.find(Workload, instance.spec.workload, instance.meta.namespace)
        return (found.spec.run_of if found is not None else "") or instance.spec.workload

    def _find_task(self, unit: Unit, launch: Launch) -> tuple[Instance | None, Task | None]:
        """Return the instance and the task of a unit."""
        instance = self.find(Instance, launch.name.partition("/")[0], launch.namespace)
        if instance is None or instance.meta.uid != unit.uid:
            return None, None
        release = self.find(Release, instance.spec.release, launch.namespace)
        if release is None:
            return instance, None
        return instance, release.spec.groups[instance.spec.group].form(instance.spec.variant).tasks[unit.task]

    async def _look_at_machines(self) -> None:
        """Call `looker` at each tick after which a machine has changed."""
        while True:
            await self.clock.sleep(TICK_SECONDS)
            now = self.clock.monotonic()
            for node in self.nodes.values():
                if node.machine.until <= now and node.up:
                    node.machine.readings()
                if node.changed:
                    node.changed = False
                    self._look_on = True
            if self._look_on:
                self._look_on = self.looker()

    def look_on(self) -> None:
        """Call `looker` at the next tick."""
        self._look_on = True

    def usage_changed(self) -> None:
        """Recompute usage after usage rules have changed."""
        for node in self.nodes.values():
            node.look_again()

    def check(self) -> None:
        super().check()
        for node in self.nodes.values():
            node.check()


def _counted() -> Any:
    numbers = itertools.count(1)
    return lambda: f"{next(numbers):024x}"
