"""A simulated cluster: the world with its server's ears, and nodes whose agents are the real ones."""

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
"""Of a server that takes its lease back when it goes."""
TICK_SECONDS = 5.0
"""How often silent nodes and short hosts are looked for: seldomer than in a real cluster, so that days pass fast."""
KEEP = Keep(sweep_seconds=300.0)
"""What nobody needs any more is in nobody's way: it is swept away seldomer than in a real cluster, too."""
AGENT = {
    "heartbeat_seconds": 10.0,
    "fingerprint_seconds": 300.0,
    "look_seconds": TICK_SECONDS,
    "stall_seconds": 2 * QUIET_SECONDS,
}
BUILT_IN = ConfigSource().once()


class SimCluster(World):
    """Everything that happens in it follows from its seed and what is done to it."""

    def __init__(
        self,
        clock: VirtualClock,
        *,
        seed: int = 0,
        config: ConfigSource | None = None,
        times: NodeTimes | None = None,
        restore_seconds: float = 60.0,
        luck: str | None = None,
        unreliable: bool = False,
    ) -> None:
        """
        `luck`: seed of the scheduler's tie-break; by default, `seed`.
        `unreliable`: scheduler, controllers and server use connections to the store that can fail, as agents do.
        """
        random.seed(seed)  # Jitter of pauses and heartbeats uses the module's generator.
        self.clock = clock
        self.chance = random.Random(seed)
        store = MemoryStore(clock=clock, new_uid=_counted(), bookmark_seconds=QUIET_SECONDS)
        super().__init__(
            clock, store, times=times or NodeTimes(tick_seconds=TICK_SECONDS), seed=str(seed) if luck is None else luck
        )
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
        """Called at a tick at which a machine is not as it was, and at the next one, if it says so."""
        self._look_on = False
        self.endings: Mapping[str, Sequence[Ending]] = {}
        """Of programs that end by themselves, by workload or instance: one start after the other."""
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
        """`off`: these have no power yet."""
        for kind in kinds:
            await self.add(kind.made())
            node = SimNode(
                kind,
                self.store,
                VirtualClock(),
                self._unit_usage,
                self._hear,
                Path(self._folder.name),
                chance=random.Random(self.chance.random()),
                fate=self._fate,
                **{**AGENT, **settings},
            )
            self.nodes[kind.name] = node
            if kind.name not in off:
                node.boot()

    def _new_server(self) -> Heartbeats:
        name = f"s{next(self._servers)}"
        # Over a connection it may be gone without a word, and then its lease has to run out soon.
        lease = USUAL_LEASE_SECONDS if self.connections else LEASE_SECONDS
        return Heartbeats(self._server_store, self.clock, name, "", tick_seconds=TICK_SECONDS, lease_seconds=lease)

    async def restart(self, part: Part) -> None:
        """As in a failover: it dies without a word, and another one begins from what is stored."""
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

    def _hear(self, node: str, beat: Heartbeat) -> None:
        self.heartbeats.beat(node, Report(cluster=beat.cluster, usage=beat.usage, instances=beat.instances))

    def _unit_usage(self, unit: Unit, launch: Launch) -> Resources:
        instance, task = self._whose(unit, launch)
        if instance is None or task is None:
            return Resources()
        return self.usage_rules.of(self._written_as(instance), task.resources.request)

    def _fate(self, unit: Unit, launch: Launch) -> Mapping[str, Any]:
        if not self.endings:
            return {}
        instance, task = self._whose(unit, launch)
        if instance is None or task is None or task.role != "main":
            return {}
        told = self.endings.get(instance.meta.name) or self.endings.get(self._written_as(instance))
        if not told:
            return {}
        starts = self._starts.setdefault(f"{instance.meta.namespace}/{instance.meta.name}/{unit.task}", [])
        if unit not in starts:
            starts.append(unit)
        end = told[min(starts.index(unit), len(told) - 1)]
        return {"after": str(end.after), "exit_code": end.exit_code}

    def _written_as(self, instance: Instance) -> str:
        """The name that its workload has in the scenario: a run of a schedule goes by the name of that."""
        found = self.find(Workload, instance.spec.workload, instance.meta.namespace)
        return (found.spec.run_of if found is not None else "") or instance.spec.workload

    def _whose(self, unit: Unit, launch: Launch) -> tuple[Instance | None, Task | None]:
        """The instance of a unit, and the task that it is."""
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
        """At the next tick, whatever happens."""
        self._look_on = True

    def usage_changed(self) -> None:
        """UsageRules have changed."""
        for node in self.nodes.values():
            node.look_again()

    def check(self) -> None:
        super().check()
        for node in self.nodes.values():
            node.check()


def _counted() -> Any:
    numbers = itertools.count(1)
    return lambda: f"{next(numbers):024x}"
