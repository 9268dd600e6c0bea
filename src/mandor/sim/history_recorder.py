"""Watches the store of a simulated cluster and records what the report needs."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from mandor.lib.clock import Clock
from mandor.model.codec import encode_stable
from mandor.model.instance import EVICTED, Instance
from mandor.model.node import Node, NodePhase
from mandor.model.phase import Phase
from mandor.model.workload import Workload
from mandor.scheduler.preempting import PREEMPTED
from mandor.sim.history import PreemptionRecord, RunInterval, Steps, TimelineNote
from mandor.store.base import Change
from mandor.store.memory import MemoryStore

NOTES_MOST = 20_000


@dataclass(slots=True)
class HistoryRecorder:
    """History of one run; times are seconds since its start."""

    clock: Clock
    begun: float
    stays: list[RunInterval] = field(default_factory=list)
    preemptions: list[PreemptionRecord] = field(default_factory=list)
    notes: list[TimelineNote] = field(default_factory=list)
    running: dict[str, Steps] = field(default_factory=dict)
    wanted: dict[str, Steps] = field(default_factory=dict)
    ready: dict[str, Steps] = field(default_factory=dict)
    relaxed: list[tuple[float, str, str]] = field(default_factory=list)
    """Time, instance and rule of each relaxed rule."""
    evictions: list[tuple[float, str, str]] = field(default_factory=list)
    changes: int = 0
    _open: dict[str, tuple[Instance, float]] = field(default_factory=dict)
    _depths: dict[str, int] = field(default_factory=dict)
    """Length of the preemption chain, by name of a preempted instance that has not run again."""
    _dead: dict[str, float] = field(default_factory=dict)
    """Start of the interval that a power failure ended, by uid."""
    _digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    @property
    def now(self) -> float:
        return self.clock.monotonic() - self.begun

    @property
    def digest(self) -> str:
        """Hash of all changes with their order and time; equal histories have equal hashes."""
        return self._digest.hexdigest()

    async def follow(self, store: MemoryStore) -> None:
        async for batch in store.watch(None, since=0):
            real = [each for each in batch if not each.bookmark]
            now = self.now
            for each in real:
                value = each.value
                # An unchanged spec is part of the hash already.
                told = encode_stable((value.meta, value.status) if each.status_only else value)
                self._digest.update(b"%.6f %d %b" % (now, each.revision, told))
                self._see(each)
            self.changes += len(real)
            if any(isinstance(each.after, Instance) for each in real):
                self._see_preemptions(real)

    def note(self, kind: str, text: str) -> None:
        if len(self.notes) < NOTES_MOST:
            self.notes.append(TimelineNote(round(self.now, 3), kind, text))

    def power_off(self, node: str) -> None:
        """End the intervals of instances on a node that lost power, before the cluster notices."""
        for uid, (instance, since) in list(self._open.items()):
            if instance.node == node:
                del self._open[uid]
                self._dead[uid] = instance.status.started_at
                self._leave(instance, since)
                self._count(instance.spec.workload, -1)

    def _serves(self, instance: Instance | None) -> bool:
        if instance is None or instance.phase is not Phase.RUNNING or not instance.status.ready:
            return False
        return instance.status.started_at != self._dead.get(instance.meta.uid)

    def close(self) -> None:
        """End all open intervals now."""
        for instance, since in list(self._open.values()):
            self._leave(instance, since)
        self._open.clear()

    def stays_of(self, *workloads: str) -> list[RunInterval]:
        open_now = [
            RunInterval(each.spec.workload, each.meta.name, each.node, since, self.now)
            for each, since in self._open.values()
        ]
        return [each for each in (*self.stays, *open_now) if each.workload in workloads]

    # One change.

    def _see(self, change: Change) -> None:
        before, after = change.before, change.after
        if isinstance(change.value, Instance):
            old = before if isinstance(before, Instance) else None
            self._see_instance(old, after if isinstance(after, Instance) else None)
        elif isinstance(change.value, Workload):
            self._see_workload(change.value, gone=after is None)
        elif isinstance(change.value, Node):
            self._see_node(change.value, gone=after is None)

    def _see_workload(self, workload: Workload, *, gone: bool) -> None:
        name = workload.meta.name
        count = 0 if gone else sum(group.count for group in workload.spec.groups.values())
        if workload.spec.type == "batch":  # What has come to its end is not missing.
            over = workload.status.phase in {"Succeeded", "Failed"}
            wanted = workload.status.wanted if workload.spec.per_node else count
            count = 0 if over else max(0, wanted - workload.status.succeeded)
        daemon = workload.spec.per_node  # as many as there are nodes for it: one is enough to be there
        self.wanted.setdefault(name, Steps()).set(self.now, min(count, 1) if daemon else count)
        self.running.setdefault(name, Steps())

    def _see_node(self, node: Node, *, gone: bool) -> None:
        steps = self.ready.setdefault(node.meta.name, Steps())
        was = steps.at(self.now)
        steps.set(self.now, int(not gone and node.status.phase is NodePhase.READY))
        if steps.at(self.now) != was:
            self.note("node", f"{node.meta.name} is {'Ready' if not was else node.status.phase.value}")

    def _see_instance(self, before: Instance | None, after: Instance | None) -> None:
        value = after or before
        assert value is not None
        uid, name = value.meta.uid, value.meta.name
        serves = self._serves(after)
        if serves and uid not in self._open:
            self._open[uid] = (value, self.now)
            self._depths.pop(name, None)
            self._count(value.spec.workload, 1)
        elif not serves and uid in self._open:
            self._leave(*self._open.pop(uid))
            self._count(value.spec.workload, -1)
        if after is None:
            return
        if after.node and (before is None or not before.node):
            for rule in after.spec.relaxed:
                self.relaxed.append((self.now, name, rule))
                self.note("relaxed", f"{name} goes to {after.node} without `{rule}`")
        if after.phase is Phase.FAILED and (before is None or before.phase is not Phase.FAILED):
            self._see_failure(after)
        elif before is not None and after.status.restarts > before.status.restarts:
            self.note("restart", f"{name} on {after.node}: {after.status.reason} {after.status.message}".strip())

    def _see_failure(self, instance: Instance) -> None:
        status = instance.status
        if status.reason == EVICTED:
            self.evictions.append((self.now, instance.meta.name, instance.node))
        kind = "evicted" if status.reason == EVICTED else "failed"
        self.note(kind, f"{instance.meta.name} on {instance.node}: {status.reason} {status.message}".strip())

    def _count(self, workload: str, by: int) -> None:
        steps = self.running.setdefault(workload, Steps())
        steps.set(self.now, steps.at(self.now) + by)

    def _leave(self, instance: Instance, since: float) -> None:
        self.stays.append(RunInterval(instance.spec.workload, instance.meta.name, instance.node, since, self.now))

    # Who made room for whom: told in one commit.

    def _see_preemptions(self, batch: Sequence[Change]) -> None:
        for _, commit in groupby(batch, key=lambda each: each.revision):
            together = list(commit)
            victims = [each.after for each in together if isinstance(each.after, Instance) and _displaced(each)]
            takers = [
                each.after for each in together if isinstance(each.after, Instance) and each.after.status.nominated
            ]
            for victim in victims:
                taker = next((each for each in takers if each.status.nominated == victim.node), None)
                if taker is not None:
                    self._displace(victim, taker)

    def _displace(self, victim: Instance, taker: Instance) -> None:
        depth = self._depths.get(taker.meta.name, 0) + 1
        self._depths[victim.meta.name] = depth
        self.preemptions.append(PreemptionRecord(self.now, victim.meta.name, taker.meta.name, victim.node, depth))
        self.note("preempted", f"{victim.meta.name} makes room on {victim.node} for {taker.meta.name}")


def _displaced(change: Change) -> bool:
    before, after = change.before, change.after
    assert isinstance(after, Instance)
    told = after.spec.stop is not None and after.spec.stop.reason == PREEMPTED
    return told and not (isinstance(before, Instance) and before.spec.stop is not None)
