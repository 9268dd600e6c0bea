"""A whole control plane on a clock that stands still, with nodes that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from mandor.api.tallies import Tallies
from mandor.controllers.autoscale import AutoscaleController
from mandor.controllers.batch_plan import batch_of
from mandor.controllers.cron import CronController
from mandor.controllers.drain import DrainController
from mandor.controllers.garbage import GarbageController
from mandor.controllers.maintenance import MaintenanceController
from mandor.controllers.node import NodeController
from mandor.controllers.node_plan import NodeTimes
from mandor.controllers.runner import run_all
from mandor.controllers.taint import TaintController
from mandor.controllers.volume import VolumeController
from mandor.controllers.workload import WorkloadController
from mandor.errors import Conflict, Unavailable
from mandor.lib.clock import ManualClock, settle
from mandor.model.autoscale import Metric
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Key, Meta, Object
from mandor.model.node import Node, NodePhase
from mandor.model.phase import Phase, may_move
from mandor.model.record import Event, Hearing, HearingSpec, Lease, LeaseSpec
from mandor.model.resources import Resources
from mandor.model.usage import InstanceUsage
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload
from mandor.scheduler.loop import Scheduler
from mandor.store.base import Delete, Put, Store
from mandor.store.memory import MemoryStore
from mandor.store.recorder import Recorder
from tests.scenarios.make import make_node

O = TypeVar("O", bound=Object)  # noqa: E741 - O for object
Behaviour = Callable[[Instance], InstanceStatus | None]
"""What an agent reports next about a running instance; None: nothing new."""


def _no_metric(metric: Metric) -> float:
    raise Unavailable(f"{metric.url} does not answer")


class ScriptedNode:
    """Starts what it is told to and stops what it is told to; keeps running while it is cut off."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        """Its heartbeats and reports arrive."""
        self.running: dict[str, str] = {}
        """Name by uid: what really runs there."""
        self.disks: set[tuple[str, int]] = set()
        """The volumes that are there: uid and incarnation."""
        self.behave: Behaviour = lambda instance: None
        self.ready = True
        self.idle = False
        """It is heard, and does nothing."""
        self.slow_stop = 0.0
        """Seconds it takes to stop something."""

    def report(self, instance: Instance, now: float) -> InstanceStatus | None:
        phase, uid = instance.phase, instance.meta.uid
        if phase.over:
            self.running.pop(uid, None)
            return None
        if instance.spec.stop is not None and now - instance.spec.stop.at < self.slow_stop:
            return None if phase is Phase.STOPPING else InstanceStatus(phase=Phase.STOPPING, since=now)
        if instance.spec.stop is not None:
            self.running.pop(uid, None)
            return InstanceStatus(phase=Phase.STOPPED, reason="StopOrdered", since=now)
        if phase is Phase.RESERVED:
            return InstanceStatus(phase=Phase.STARTING, since=now)
        if phase in {Phase.STARTING, Phase.LOST}:
            self.running[uid] = instance.meta.name
            return InstanceStatus(phase=Phase.RUNNING, ready=self.ready, since=now, started_at=now)
        answer = self.behave(instance)
        if answer is not None and answer.phase.over:
            self.running.pop(uid, None)
        return answer


class World:
    def __init__(self, *, times: NodeTimes | None = None, seed: str = "") -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        self.times = times or NodeTimes()
        self.seed = seed
        self.nodes: dict[str, ScriptedNode] = {}
        self.tallies = Tallies("s1")
        self.serving = True
        """The API server lives and hears the nodes."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.checks: list[Callable[[], None]] = []
        self.scheduler: Scheduler | None = None
        self.scheduler_store: Store | None = None
        """What the scheduler sees instead of the store itself."""
        self.scheduler_options: dict[str, Any] = {}
        self.usage: Callable[[Instance], InstanceUsage] | None = None
        """What a running instance uses; None: no heartbeat tells."""
        self.metric: Callable[[Metric], float] = _no_metric

    async def __aenter__(self) -> Self:
        self.start_controllers()
        self.start_scheduler()
        await settle()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._tasks):
            await self.kill(name)

    def start_controllers(self) -> None:
        recorder = Recorder(self.store, "controllers", self.clock)
        controllers = (
            WorkloadController(self.store, self.clock, recorder),
            AutoscaleController(self.store, self.clock, recorder, self.ask),
            CronController(self.store, self.clock, recorder),
            NodeController(self.store, self.clock, recorder, self.times),
            DrainController(self.store, self.clock, recorder),
            TaintController(self.store, self.clock, recorder),
            MaintenanceController(self.store, self.clock, recorder),
            VolumeController(self.store, recorder),
            GarbageController(self.store, self.clock),
        )
        self._start("controllers", run_all(controllers, self.store, self.clock))
        self._start("their recorder", recorder.run())

    def start_scheduler(self) -> None:
        recorder = Recorder(self.store, "scheduler", self.clock)
        self.scheduler = Scheduler(
            self.scheduler_store or self.store, self.clock, recorder, seed=self.seed, **self.scheduler_options
        )
        self._start("scheduler", self.scheduler.run())
        self._start("its recorder", recorder.run())

    async def ask(self, metric: Metric) -> float:
        return self.metric(metric)

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[name] = asyncio.ensure_future(work)

    async def kill(self, name: str) -> None:
        """As a crash does: nothing more is written."""
        task = self._tasks.pop(name)
        if task.done():
            task.result()
        task.cancel()
        await asyncio.wait({task})

    # Time.

    async def run(self, seconds: float, step: float = 0.5) -> None:
        """Let time pass, with everybody doing what they do, and the invariants checked at every step."""
        for _ in range(round(seconds / step)):
            await self._beat()
            await self._agents()
            await self.clock.advance(step)
            await settle(100)
            for task in self._tasks.values():
                if task.done():
                    task.result()
            for check in self.checks:
                check()

    async def until(self, reached: Callable[[], bool], seconds: float = 300) -> None:
        for _ in range(round(seconds * 2)):
            if reached():
                return
            await self.run(0.5)
        raise AssertionError(f"not reached within {seconds} seconds: {self.phases()}")

    async def _beat(self) -> None:
        if not self.serving:
            return
        lease = self.find(Lease, "server-s1", "")
        spec = LeaseSpec(holder="s1", seconds=5.0, renewals=(lease.spec.renewals + 1) if lease else 0)
        meta = lease.meta if lease else Meta(name="server-s1")
        await self.store.commit(Put(Lease(meta=meta, spec=spec)))
        heard = tuple(sorted(name for name, node in self.nodes.items() if node.alive))
        hearing = self.find(Hearing, "s1", "")
        if hearing is None or hearing.spec.nodes != heard:
            meta = hearing.meta if hearing else Meta(name="s1")
            await self.store.commit(Put(Hearing(meta=meta, spec=HearingSpec(nodes=heard))))
        await self._tally()

    async def _tally(self) -> None:
        """As an API server does with the usage that heartbeats tell."""
        if self.usage is None:
            return
        for name, node in self.nodes.items():
            here = [each for each in self.instances() if each.node == name and each.meta.uid in node.running]
            told = {f"{each.meta.namespace}/{each.meta.name}": self.usage(each) for each in here}
            self.tallies.heard(name, told if node.alive else {})
        writes = await self.tallies.writes(self.store, self.clock.monotonic())
        if writes:
            await self.store.commit(*writes)

    async def _agents(self) -> None:
        orders = {each.meta.uid: each for each in self.instances()}
        for node in self.nodes.values():
            if not node.alive or node.idle or not self.serving:
                continue
            for uid in [uid for uid in node.running if uid not in orders or orders[uid].node != node.name]:
                del node.running[uid]  # Nobody ordered it any more.
            for each in orders.values():
                if each.node == node.name:
                    await self._report(node, each)

    async def _report(self, node: ScriptedNode, instance: Instance) -> None:
        status = node.report(instance, self.clock.now())
        if status is None or not may_move(instance.phase, status.phase):
            return
        if instance.phase is Phase.RESERVED and not await self._has_volumes(node, instance):
            return
        try:
            await self.store.commit(Put(instance.reported(status)))
        except Conflict:
            return  # Someone was faster; next time.

    async def _has_volumes(self, node: ScriptedNode, instance: Instance) -> bool:
        """As an agent sees to it: they are here, made if there is nothing in them yet, and that is told first."""
        for name in instance.spec.volumes:
            volume = self.find(Volume, name)
            if volume is None or volume.node != node.name:
                return False
            disk = (volume.meta.uid, volume.status.incarnation)
            if not volume.status.path:
                node.disks.add(disk)
                try:
                    await self.store.commit(
                        Put(volume.changed(status=msgspec.structs.replace(volume.status, path=f"/{name}")))
                    )
                except Conflict:
                    return False
            assert disk in node.disks, f"{instance.meta.name} would begin on {node.name} without its data"
        return True

    # What there is.

    def find(self, kind: type[O], name: str, namespace: str = "default") -> O | None:
        found = self.store.index.get(Key(kind.kind, namespace, name))
        return found if isinstance(found, kind) else None

    def all(self, kind: type[O]) -> list[O]:
        return [each for each in self.store.index.snapshot(kind.kind) if isinstance(each, kind)]

    def instances(self, workload: str | None = None) -> list[Instance]:
        found = [each for each in self.all(Instance) if workload in {None, each.spec.workload}]
        return sorted(found, key=lambda each: (each.spec.workload, each.spec.group, each.spec.index))

    def instance(self, name: str) -> Instance:
        found = self.find(Instance, name)
        assert found is not None, f"there is no {name}: {self.phases()}"
        return found

    def workload(self, name: str) -> Workload:
        found = self.find(Workload, name)
        assert found is not None
        return found

    def phases(self) -> dict[str, str]:
        return {each.meta.name: f"{each.phase.value} {each.node}".strip() for each in self.instances()}

    def node_phase(self, name: str) -> NodePhase:
        found = self.find(Node, name, "")
        assert found is not None
        return found.status.phase

    def events(self, reason: str) -> list[Event]:
        return [each for each in self.all(Event) if each.spec.reason == reason]

    def serving_count(self, workload: str) -> int:
        return sum(each.phase is Phase.RUNNING and each.status.ready for each in self.instances(workload))

    # What users do.

    async def add_nodes(self, *names: str, **fields: Any) -> None:
        for name in names:
            self.nodes[name] = ScriptedNode(name)
            await self.add(make_node(name, phase=NodePhase.UNKNOWN, **fields))

    async def add(self, value: Object) -> None:
        await self.store.commit(Put(value))

    async def apply(self, wanted: Workload) -> None:
        """Create it, or change what is there."""
        while True:
            found = self.find(Workload, wanted.meta.name)
            meta = found.meta if found else Meta(name=wanted.meta.name, namespace=wanted.meta.namespace)
            value = wanted.changed(meta=meta, status=found.status if found else wanted.status)
            try:
                await self.store.commit(Put(value))
            except Conflict:
                continue
            return

    async def delete(self, value: Object) -> None:
        while (found := self.store.index.get(value.key)) is not None:
            try:
                await self.store.commit(Delete(found.key, found.meta.version))
            except Conflict:
                continue

    async def stop_instance(self, name: str, reason: str = "deleted by user") -> None:
        await self.store.commit(Put(self.instance(name).stopping(reason, at=self.clock.now())))

    async def change_node(self, name: str, **spec: Any) -> None:
        found = self.find(Node, name, "")
        assert found is not None
        await self.store.commit(Put(found.changed(spec=msgspec.structs.replace(found.spec, **spec))))

    # What must always hold.

    def check_capacity(self) -> None:
        """No node is over its capacity, and no name runs on two nodes."""
        used: dict[str, Resources] = {}
        for each in self.instances():
            if each.node and not each.phase.over:
                release = self.find(Release, each.spec.release)
                assert release is not None, f"{each.meta.name} has no release"
                form = release.spec.groups[each.spec.group].form(each.spec.variant)
                used[each.node] = used.get(each.node, Resources()) + form.request
        for name, amount in used.items():
            node = self.find(Node, name, "")
            assert node is None or amount.fits(node.allocatable), f"{name} is over its capacity: {amount}"

    def check_count(self) -> None:
        """No workload has more instances alive than it wants, or may have while it is rolled out."""
        for workload in self.all(Workload):
            for name, group in workload.spec.groups.items():
                if workload.spec.type == "batch":
                    most = batch_of(workload, name).parallelism
                else:
                    rollout = workload.status.rollout
                    beside = max(group.update_room()[0], group.update.canaries(group.count))
                    most = group.count + (0 if rollout is not None and rollout.settled_on else beside)
                live = [
                    each
                    for each in self.instances(workload.meta.name)
                    if each.spec.group == name and not each.phase.over and each.spec.stop is None
                ]
                assert len(live) <= most, f"{workload.meta.name} has {len(live)} of {most}"

    def check_volumes(self) -> None:
        """Whoever has a volume is where it is."""
        for each in self.instances():
            if not each.node or each.phase.over:
                continue
            for name in each.spec.volumes:
                volume = self.find(Volume, name)
                assert (
                    volume is None
                    or volume.node == each.node
                    or volume.status.incarnation > 0
                    or (not volume.status.path)
                ), f"{each.meta.name} is on {each.node}, its volume {name} on {volume.node}"
