"""Checks invariants on every change of a simulated cluster and on its machines, while faults happen.

Controllers see the store with a delay. So a limit counts as kept if it was kept at some time within the last
`STALE_SECONDS`, minus intended changes since then.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from mandor.controllers.cron_plan import active
from mandor.engines.base import UnitPhase
from mandor.lib.quantity import NEVER
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.phase import may_move
from mandor.model.pool import NodePool
from mandor.model.volume import Volume
from mandor.model.workload import Workload
from mandor.placement.budgets import available, spare
from mandor.sim.cluster import SimCluster
from mandor.sim.invariant import check_capacity, check_volumes
from mandor.store.base import Change

STALE_SECONDS = 20.0
GroupKey = tuple[str, str, str]
LOOKED_AT = (Instance, Node, Volume)
"""Kinds whose changes trigger a check of the whole cluster."""


class InvariantViolated(Exception):
    """An invariant of the cluster is violated."""


@dataclass(slots=True)
class _RecentMaximum:
    """Maximum of a number over the last `STALE_SECONDS`."""

    seen: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now: float, value: int) -> None:
        self.seen.append((now, value))
        while len(self.seen) > 1 and self.seen[1][0] <= now - STALE_SECONDS:
            self.seen.popleft()

    @property
    def most(self) -> int:
        return max((value for _, value in self.seen), default=0)


@dataclass(slots=True)
class _Limits:
    """Remaining limits of one group, without its intended stops."""

    spare: _RecentMaximum = field(default_factory=_RecentMaximum)
    """Instances that the disruption budget allows to stop."""
    away: _RecentMaximum = field(default_factory=_RecentMaximum)
    """Instances that an update may stop."""
    most: _RecentMaximum = field(default_factory=_RecentMaximum)
    """Instances that may exist."""
    taken: int = 0


class InvariantChecker:
    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._limits: dict[GroupKey, _Limits] = {}
        self._excused: set[str] = set()
        """Uids on nodes whose engine did not answer; they could not be stopped."""
        self.changed_at: dict[str, float] = {}
        """Monotonic time of the last phase change, by uid."""
        self._revision = 0

    @property
    def _now(self) -> float:
        return self._cluster.clock.monotonic()

    async def follow(self) -> None:
        async for batch in self._cluster.store.watch(None, since=0):
            real = [each for each in batch if not each.bookmark]
            for each in real:
                self._see(each)
            if any(isinstance(each.value, LOOKED_AT) for each in real):
                self.look()

    def look(self) -> None:
        """Check the cluster as it is now."""
        try:
            self._cluster.check()
            check_capacity(self._cluster)
            check_volumes(self._cluster)
        except AssertionError as error:
            raise InvariantViolated(str(error)) from None
        self._look_at_machines()

    # One change.

    def _see(self, change: Change) -> None:
        if change.revision < self._revision:
            raise InvariantViolated(f"revision {change.revision} came after {self._revision}")
        self._revision = change.revision
        before = change.before if isinstance(change.before, Instance) else None
        after = change.after if isinstance(change.after, Instance) else None
        if isinstance(change.value, Instance):
            self._see_instance(before, after)
            self._measure(_group(change.value))
        elif isinstance(change.value, Workload):
            meta = change.value.meta
            for name in change.value.spec.groups:
                self._measure((meta.namespace, meta.name, name))
            self._check_runs(change)
        elif isinstance(change.before, NodePool) and isinstance(change.after, NodePool):
            self._check_machines(change.before, change.after)

    def _see_instance(self, before: Instance | None, after: Instance | None) -> None:
        if after is None:
            return
        if before is None or before.meta.uid != after.meta.uid:
            self.changed_at[after.meta.uid] = self._now
            self._check_birth(after)
            return
        if before.phase is not after.phase:
            self.changed_at[after.meta.uid] = self._now
        if not may_move(before.phase, after.phase):
            raise InvariantViolated(f"{after.meta.name} went from {before.phase.value} to {after.phase.value}")
        if before.node and after.node != before.node:
            raise InvariantViolated(f"{after.meta.name} went from {before.node} to {after.node or 'no node'}")
        if after.phase.over and not before.phase.over:
            self._check_end(after)
        if before.spec.stop is None and after.spec.stop is not None and available(before):
            self._check_stop(before, after)

    def _check_birth(self, made: Instance) -> None:
        """Check that the workload does not have too many instances."""
        workload = self._workload(_group(made))
        if workload is None or workload.spec.per_node or made.phase.over:
            return
        limits = self._measure(_group(made))
        members = self._of_group(_group(made))
        leaving = {each.meta.uid for each in members if each.spec.move is not None}
        live = sum(
            not each.phase.over and each.spec.stop is None and each.spec.instead_of not in leaving for each in members
        )
        if live > limits.most.most:
            raise InvariantViolated(
                f"{made.meta.name} is one too many: {live} of {limits.most.most} of {_shown(_group(made))}"
            )

    def _check_end(self, over: Instance) -> None:
        """Check that an ended instance does not run."""
        node = self._cluster.nodes.get(over.node)
        if node is not None and any(uid == over.meta.uid for uid, *_ in self._live(over.node)):
            raise InvariantViolated(f"{over.meta.name} is {over.phase.value}, and still runs on {over.node}")

    def _check_stop(self, before: Instance, after: Instance) -> None:
        """Check that updates and moves keep the limits of the group."""
        stop, group = after.spec.stop, _group(after)
        assert stop is not None
        updated = stop.reason.startswith("updated to ")
        if not updated and before.spec.move is None:
            return
        workload = self._workload(group)
        if workload is None or workload.spec.type != "service" or group[2] not in workload.spec.groups:
            return
        limits = self._limits.setdefault(group, _Limits())
        limits.taken += 1
        lately = limits.away if updated else limits.spare
        if lately.seen and lately.most < limits.taken:
            over = limits.taken - lately.most
            raise InvariantViolated(f"{after.meta.name} is stopped ({stop.reason}), {over} too many of {_shown(group)}")

    def _check_runs(self, change: Change) -> None:
        """Check that runs of a schedule with `overlap: forbid` do not overlap."""
        run = change.after
        if change.before is not None or not isinstance(run, Workload) or not run.spec.run_of:
            return
        owner = self._cluster.find(Workload, run.spec.run_of, run.meta.namespace)
        if owner is None or owner.spec.schedule is None or owner.spec.schedule.overlap != "forbid":
            return
        others = [each for each in self._cluster.all(Workload) if each.spec.run_of == owner.meta.name]
        going = [each.meta.name for each in others if each.meta.namespace == owner.meta.namespace and active(each)]
        if len(going) > 1:
            raise InvariantViolated(f"{' and '.join(going)} go on at once, and {owner.meta.name} forbids it")

    def _check_machines(self, before: NodePool, after: NodePool) -> None:
        """Check that a pool does not exceed its machine limits."""
        scaling = after.spec.autoscale
        if scaling is None or len(after.machines) <= len(before.machines):
            return
        flying = sum(each.phase == "Ordered" for each in after.machines)
        if len(after.machines) > scaling.max or flying > scaling.at_once:
            raise InvariantViolated(f"{after.meta.name} has {len(after.machines)} machines, {flying} of them ordered")

    # Limits.

    def _measure(self, group: GroupKey) -> _Limits:
        """Update and return the limits of a group."""
        limits = self._limits.setdefault(group, _Limits())
        workload = self._workload(group)
        if workload is None or group[2] not in workload.spec.groups:
            return limits
        found, members = workload.spec.groups[group[2]], self._of_group(group)
        if workload.spec.type == "service":
            surge, away = found.update_room()
            limits.most.add(self._now, found.count + max(surge, found.update.canaries(found.count)))
            limits.away.add(self._now, sum(map(available, members)) - (found.count - away) + limits.taken)
            left = spare(workload.spec, group[2], members)
            if left is not None:
                limits.spare.add(self._now, left + limits.taken)
            else:
                limits.spare.seen.clear()
        elif workload.spec.type == "batch":
            batch = workload.spec.batch
            limits.most.add(self._now, batch.together if batch is not None else found.count)
        return limits

    # Machines.

    def _look_at_machines(self) -> None:
        where: dict[str, str] = {}
        by_name: dict[tuple[str, str], set[str]] = {}
        for name, node in self._cluster.nodes.items():
            live = list(self._live(name))
            if node.up and any(engine.is_down for engine in node.engines.values()):
                self._excused |= {uid for uid, *_ in live}
            twice = [key for key, count in Counter((uid, task) for uid, task, *_ in live).items() if count > 1]
            if twice:
                raise InvariantViolated(f"two units of task {twice[0][1]} of {twice[0][0]} run on {name}")
            for uid, _, namespace, title in live:
                if where.setdefault(uid, name) != name:
                    raise InvariantViolated(f"{title} runs on {where[uid]} and on {name}")
                by_name.setdefault((namespace, title), set()).add(uid)
        for (namespace, title), uids in by_name.items():
            if len(uids - self._excused) > 1 and self._single(namespace, title):
                places = " and ".join(sorted({where[uid] for uid in uids}))
                raise InvariantViolated(f"{title} runs twice, on {places}, which its `stop_after` rules out")

    def _live(self, node: str) -> Iterator[tuple[str, str, str, str]]:
        """Yield uid, task, namespace and name of each unit that runs on a node."""
        now = self._now
        for engine in self._cluster.nodes[node].engines.values():
            for record in engine.state.all():
                if record.observed(now).phase is not UnitPhase.EXITED:
                    unit, launch = record.unit, record.launch
                    yield unit.uid, unit.task, launch.namespace, launch.name.partition("/")[0]

    def _single(self, namespace: str, name: str) -> bool:
        """Return whether the instance must never run twice."""
        found = self._cluster.store.index.get(Key(Instance.kind, namespace, name))
        if not isinstance(found, Instance):
            return False
        workload = self._workload(_group(found))
        group = workload.spec.groups.get(found.spec.group) if workload is not None else None
        return group is not None and group.disconnect.stop_after < NEVER

    # Lookups.

    def _workload(self, group: GroupKey) -> Workload | None:
        return self._cluster.find(Workload, group[1], group[0])

    def _of_group(self, group: GroupKey) -> list[Instance]:
        return [each for each in self._cluster.all(Instance) if _group(each) == group]


def _group(instance: Instance) -> GroupKey:
    return instance.meta.namespace, instance.spec.workload, instance.spec.group


def _shown(group: GroupKey) -> str:
    return f"{group[1]}/{group[2]}"
