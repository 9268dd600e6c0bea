"""Reasons why a simulated cluster has not settled after all faults are repaired; a lasting reason is a defect."""

from collections.abc import Iterator

from mandor.engines.base import UnitPhase
from mandor.model.group import Group
from mandor.model.instance import Instance
from mandor.model.node import Node, NodePhase
from mandor.model.phase import Phase
from mandor.model.pool import NodePool
from mandor.model.rebalance import Rebalance
from mandor.model.rollout import ONGOING
from mandor.model.workload import Release, Workload
from mandor.scheduler.table_check import compare
from mandor.sim.cluster import SimCluster
from mandor.sim.invariant_checker import InvariantChecker
from mandor.sim.phase_end import PhaseEndState

MOMENT_SECONDS = 60.0
"""Seconds that a change may take."""


def unsettled_reasons(cluster: SimCluster, checker: InvariantChecker) -> list[str]:
    """Return the reasons why the cluster has not settled; empty: it has."""
    return list(_ConvergenceCheck(cluster, checker).reasons())


async def differences(cluster: SimCluster) -> list[str]:
    """Return lasting differences between the scheduler's table and the store."""
    assert cluster.scheduler is not None
    report = await compare(cluster.scheduler.view, cluster.store, cluster.clock)
    return [f"{each.about}: the scheduler has it {each.table}, the store {each.store}" for each in report.differences]


class _ConvergenceCheck:
    def __init__(self, cluster: SimCluster, checker: InvariantChecker) -> None:
        self._cluster, self._checker = cluster, checker
        self._now = cluster.clock.monotonic()

    def reasons(self) -> Iterator[str]:
        for name in self._cluster.nodes:
            yield from self._node(name)
        for each in self._cluster.instances():
            yield from self._instance(each)
        for workload in self._cluster.all(Workload):
            yield from self._workload(workload)
        yield from self._orders()
        settled = PhaseEndState(self._cluster)
        waiting = {each.instance.meta.name for each in settled.pending if self._may_wait(each.instance)}
        yield from (each for each in settled.blocked_softly() if each.split()[0] not in waiting)
        yield from (each for each in settled.inversions() if each.split()[0] not in waiting)

    def _node(self, name: str) -> Iterator[str]:
        node = self._cluster.find(Node, name, "")
        if node is None or node.status.phase is not NodePhase.READY:
            yield f"{name} is {node.status.phase.value if node is not None else 'not there'}"
            return
        drain = node.status.drain
        if (node.spec.drain is None) != (drain is None):
            yield f"{name}: its drain is {'not begun' if drain is None else 'not over'}"
        elif drain is not None and drain.phase != "Drained" and not drain.waiting:
            yield f"{name} is {drain.phase}, and waits for nothing"
        known = {each.meta.uid: each for each in self._cluster.instances() if each.node == name}
        for engine in self._cluster.nodes[name].engines.values():
            for record in engine.state.all():
                order = known.get(record.unit.uid)
                live = record.observed(self._now).phase is not UnitPhase.EXITED
                if order is None:
                    yield f"{name} still has {record.unit}, which no instance owns"
                elif live and order.phase.over:
                    yield f"{order.meta.name} is {order.phase.value}, and runs on {name}"
        running = {
            record.unit.uid
            for engine in self._cluster.nodes[name].engines.values()
            for record in engine.state.all()
            if record.observed(self._now).phase is UnitPhase.RUNNING
        }
        for uid, each in known.items():
            if each.phase is Phase.RUNNING and uid not in running:
                yield f"{each.meta.name} is Running, and nothing of it runs on {name}"

    def _orders(self) -> Iterator[str]:
        """Yield machines and rebalances that are still in progress."""
        for pool in self._cluster.all(NodePool):
            for machine in pool.machines:
                if machine.phase != "Joined":
                    yield f"the machine {machine.id} is {machine.phase}"
                elif machine.id not in self._cluster.nodes:
                    yield f"the machine {machine.id} is not there"
        for order in self._cluster.all(Rebalance):
            if order.status.phase in {"Planning", "Moving"}:
                yield f"the rebalance {order.meta.name} is {order.status.phase}"

    def _instance(self, each: Instance) -> Iterator[str]:
        name, phase = each.meta.name, each.phase
        if phase.over:
            return
        workload = self._cluster.find(Workload, each.spec.workload, each.meta.namespace)
        if workload is None:
            yield f"{name} is there, and its workload is not"
        elif phase is Phase.PENDING and not each.node:
            yield from self._pending(each)
        elif workload.spec.type == "batch":
            if self._age(each) > MOMENT_SECONDS:
                yield f"{name} has been {phase.value} for {self._age(each):.0f} seconds"
        elif phase is not Phase.RUNNING or not each.status.ready:
            yield f"{name} is {phase.value}{'' if phase is not Phase.RUNNING else ', and not ready'}"
        elif each.spec.stop is not None:
            yield f"{name} runs although it was stopped: {each.spec.stop.reason}"

    def _pending(self, each: Instance) -> Iterator[str]:
        assert self._cluster.scheduler is not None
        if each.spec.waits or self._age(each) < MOMENT_SECONDS / 2:
            if not each.spec.waits:
                yield f"{each.meta.name} is new"
            return
        if self._cluster.scheduler.state(each.key) is None:
            yield f"{each.meta.name} is pending, and not in the queue"
        if not each.status.message:
            yield f"{each.meta.name} is pending without a message"

    def _may_wait(self, each: Instance) -> bool:
        """Return whether the instance is new, waits for a dependency, or belongs to a gang."""
        workload = self._cluster.find(Workload, each.spec.workload, each.meta.namespace)
        gang = workload is not None and bool(workload.spec.gang_of(each.spec.group))
        return bool(each.spec.waits) or gang or self._age(each) < MOMENT_SECONDS / 2

    def _age(self, each: Instance) -> float:
        return self._now - self._checker.changed_at.get(each.meta.uid, self._now)

    def _workload(self, workload: Workload) -> Iterator[str]:
        name, status = workload.meta.name, workload.status
        if workload.spec.type == "batch":
            if workload.spec.per_node:
                yield from self._once_on_each(workload)
            return
        rollout = status.rollout
        members = [each for each in self._cluster.instances(name) if not each.phase.over]
        pending = any(each.phase is Phase.PENDING for each in members)
        held = pending or "waits for" in status.message
        if rollout is not None and rollout.phase in ONGOING and not held:
            yield f"the roll-out of {name} is {rollout.phase}: {rollout.message}"
        if rollout is not None and not held:
            others = [each.meta.name for each in members if each.spec.release != rollout.target]
            if others:
                yield f"{others[0]} is not of {rollout.target}"
        for title, group in workload.spec.groups.items():
            leaving = {each.meta.uid for each in members if each.spec.move is not None}
            mine = [each for each in members if each.spec.group == title and each.spec.instead_of not in leaving]
            yield from self._count(workload, title, group, mine)

    def _once_on_each(self, workload: Workload) -> Iterator[str]:
        done = {each.node for each in self._cluster.instances(workload.meta.name) if each.phase is Phase.SUCCEEDED}
        found = [node for name in self._cluster.nodes if (node := self._cluster.find(Node, name, "")) is not None]
        left = [node.meta.name for node in found if node.spec.drain is None and node.meta.name not in done]
        if left:
            yield f"{workload.meta.name} has not finished on {', '.join(left)}"

    def _count(self, workload: Workload, title: str, group: Group, members: list[Instance]) -> Iterator[str]:
        release = self._cluster.find(Release, workload.status.release, workload.meta.namespace)
        if release is None:
            yield f"{workload.meta.name} has no release yet"
            return
        wanted = group.count
        waits = any(each.phase is Phase.PENDING for each in members)
        most = wanted + (group.update_room()[0] if waits else 0)
        if workload.spec.type == "daemon":  # They go last, when a node is drained.
            nodes = [node for name in self._cluster.nodes if (node := self._cluster.find(Node, name, "")) is not None]
            wanted = sum(node.spec.drain is None for node in nodes)
            most = sum(node.status.drain is None or node.status.drain.phase != "Drained" for node in nodes)
        if not wanted <= len(members) <= most:
            yield f"{workload.meta.name}/{title} has {len(members)} of {wanted}"
