"""The workload controller: keeps the wanted number of instances of the wanted release."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from mandor.controllers import replicas
from mandor.controllers.base import Controller, Grouped, in_order
from mandor.controllers.daemon_node_index import DaemonNodeIndex
from mandor.controllers.dependencies import Dependencies
from mandor.controllers.draft import Draft, Note
from mandor.controllers.instance_index import bound_to_node
from mandor.controllers.release_plan import current_release
from mandor.controllers.replicas import ClusterView, Other
from mandor.controllers.secret_change_plan import with_content_ids
from mandor.controllers.secret_users import content_ids
from mandor.controllers.workload_plan import WorkloadInputs, plan_in_steps
from mandor.controllers.writer import Writer
from mandor.lib.clock import Clock
from mandor.lib.steps import Steps, chosen
from mandor.lib.turns import in_turns
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.node import Node, NodePhase
from mandor.model.phase import Phase
from mandor.model.release import is_release_of
from mandor.model.secret_change import restart_secrets, signal_secrets
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload
from mandor.store.base import Change, Put, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

PACE_SECONDS = 0.0001
"""Seconds per instance between two plans of a workload, because a plan covers the whole workload."""
PACE_LEAST = 0.02  # seconds; shorter pauses are skipped
PACE_MOST = 2.0  # seconds
TOGETHER_MOST = 4.0
"""Longest pause in seconds, however many other workloads change at the same time."""

_new_tuple = tuple.__new__
_LOST = Phase.LOST  # attribute access of enum members is slow in Python 3.11


class Name(NamedTuple):
    """Namespace and name of a workload; instances may exist after the workload was deleted."""

    namespace: str
    workload: str


class WorkloadController(Controller[Name]):
    name = "workload"
    watches = (Workload.kind, Release.kind, Instance.kind, Node.kind, Volume.kind)

    def __init__(self, store: Store, clock: Clock, recorder: Recorder) -> None:
        self._store = store
        self._clock = clock
        self._recorder = recorder
        self._instances: Grouped[Name, Instance] = Grouped(_name)
        self._releases: Grouped[Name, Release] = Grouped(_name)
        self._with_lost: dict[Name, None] = {}
        """Workloads with lost instances, in a deterministic order."""
        self._ready_nodes: set[str] = set()
        self._daemon_nodes = DaemonNodeIndex()
        self._dependencies = Dependencies()
        self._rest_until: dict[Name, float] = {}
        self._ready_since: dict[Name, dict[str, float]] = {}
        """Time since which instances, by uid, have been ready, for workloads that are updated or moved. It is on this
        process's monotonic clock, because agents' clocks are not reliable; a new leader starts again."""

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._workloads = mirrors[Workload.kind]
        self._all_instances = mirrors[Instance.kind]
        self._volumes = mirrors[Volume.kind]
        self._writer = Writer(self._store, mirrors)

    def observe_all(self, changes: Sequence[Change]) -> Iterable[Name]:
        """Return the changed workloads. Optimised for instances that stay with their workload."""
        names: dict[Name, None] = {}
        for change in changes:
            before, after = change.before, change.after
            if _is_claim(before) or _is_claim(after):
                continue
            if type(after) is Instance and (before is None or before.spec.workload == after.spec.workload):
                name = _new_tuple(Name, (after.meta.namespace, after.spec.workload))
                self._instances.change(name, before, after)  # type: ignore[arg-type]
                if after.status.phase is _LOST:
                    self._with_lost[name] = None
                if name in self._ready_since and not after.status.ready:
                    self._ready_since[name].pop(after.meta.uid, None)
                names[name] = None
            else:
                names.update(dict.fromkeys(in_order(self.observe(change))))
        return names

    def observe(self, change: Change) -> Iterable[Name]:
        before, after = change.before, change.after
        if isinstance(change.value, Node):
            return self._observe_node(change)
        if isinstance(change.value, Volume):
            # Lost instances may be replaced when their volume is deleted or recreated elsewhere.
            moved = before is not None and (after is None or after.node != before.node)
            return frozenset(self._with_lost) if moved else ()
        if isinstance(before, Instance):
            self._instances.update(before, after if isinstance(after, Instance) else None)
            self._ready_since.get(_name(before), {}).pop(before.meta.uid, None)
        elif isinstance(change.value, Release):
            self._releases.update(
                before if isinstance(before, Release) else None, after if isinstance(after, Release) else None
            )
        names = dict.fromkeys(
            _name(each) for each in (before, after) if isinstance(each, Workload | Release | Instance)
        )
        return names if isinstance(before, Instance) else self._with_dependants(change, names)

    def _with_dependants(self, change: Change, names: Iterable[Name]) -> Iterable[Name]:
        """Return these names and the names of workloads that depend on them."""
        if isinstance(change.value, Workload):
            after = change.after if isinstance(change.after, Workload) else None
            self._dependencies.set(*_name(change.value), after)
        return [*names, *(Name(*each) for name in names for each in self._dependencies.on(*name))]

    def _observe_node(self, change: Change) -> Iterable[Name]:
        """Return the workloads that a node change affects: those with lost instances, and those on every node."""
        name = change.value.meta.name
        found = [Name(each.namespace, each.workload) for each in self._daemon_nodes.see(change)]
        ready = isinstance(change.after, Node) and change.after.status.phase is NodePhase.READY
        if ready != (name in self._ready_nodes):
            (self._ready_nodes.add if ready else self._ready_nodes.discard)(name)
            found += self._with_lost
        return found

    def subject(self, key: Name) -> Object | None:
        return self._workloads.get(Key(Workload.kind, key.namespace, key.workload))

    async def reconcile(self, key: Name) -> float | None:
        rest = self._rest_until.get(key, 0.0) - self._clock.monotonic()
        if rest > 0:
            return rest
        workload = await self._workload(key)
        instances = self._instances.of(key)
        self._pace(key, len(instances))
        if key in self._with_lost and not await in_turns(chosen(instances, _lost)):
            self._with_lost.pop(key, None)
        cluster = ClusterView(
            now=self._clock.now(),
            ready_nodes=self._ready_nodes,
            taken=lambda name: self._taken(key, name),
            bound_to_node=self._bound_to_node,
            ready_seconds=lambda instance: self._ready_seconds(key, instance),
            site=self._daemon_nodes.snapshot(),
            other=lambda name: self._other(key, name),
        )
        seen = WorkloadInputs(workload, self._releases.of(key), instances)
        if workload is not None and workload.spec.per_node:
            await in_turns(self._prepared(workload, seen.releases))
        draft = await in_turns(plan_in_steps(seen, cluster))
        if workload is None or not workload.spec.per_node:
            self._daemon_nodes.forget(*key)
            # Daemons can be updated at any time, when a node returns.
            if key in self._ready_since and _settled(workload) and not await in_turns(chosen(instances, _moving)):
                self._ready_since.pop(key, None)
        if draft.unfinished:
            self._rest_until.pop(key, None)  # The plan has only begun.
        if draft.writes:
            await self._note_secrets(seen.releases, draft)
            await self._writer.commit(draft.writes)
        await self._go_on(workload, draft)
        for note in draft.notes:
            self._record(note)
        return draft.again_seconds

    async def _note_secrets(self, releases: Sequence[Release], draft: Draft) -> None:
        """Store the content ids of secrets in a new release before its first instance exists, so that instances never
        read older values."""
        for place, write in enumerate(draft.writes):
            release = write.value if isinstance(write, Put) else None
            groups = release.spec.groups.values() if isinstance(release, Release) else ()
            restarts = restart_secrets(groups)
            names = restarts | signal_secrets(groups)
            if isinstance(release, Release) and names:
                current = await content_ids(self._store, release.meta.namespace, names)
                before = max(releases, key=lambda each: each.spec.sequence, default=None)
                draft.writes[place] = Put(with_content_ids(release, before, current, restarts))

    async def _go_on(self, planned: Workload | None, draft: Draft) -> None:
        """Commit the deferred writes of the plan while the workload is unchanged; other tasks run in between."""
        while planned is not None and self._workloads.get(planned.key) is planned:
            more = list(islice(draft.rest, replicas.CREATED_LEAST))
            if not more:
                return
            await self._writer.commit(more)

    def _pace(self, key: Name, count: int) -> None:
        now = self._clock.monotonic()
        resting = sum(at > now for each, at in self._rest_until.items() if each != key)
        pause = rest_seconds(count, resting)
        if pause:
            self._rest_until[key] = now + pause
        else:
            self._rest_until.pop(key, None)

    def _prepared(self, workload: Workload, releases: Sequence[Release]) -> Steps[None]:
        """Compute the matching nodes of the release that the plan needs."""
        current = current_release(Draft(), workload, releases)
        rollout = workload.status.rollout
        target = current.meta.name if rollout is None or rollout.release != current.meta.name else rollout.target
        yield from self._daemon_nodes.prepare(next((each for each in releases if each.meta.name == target), current))

    def _ready_seconds(self, key: Name, instance: Instance) -> float:
        now = self._clock.monotonic()
        return now - self._ready_since.setdefault(key, {}).setdefault(instance.meta.uid, now)

    async def _workload(self, key: Name) -> Workload | None:
        stored = Key(Workload.kind, key.namespace, key.workload)
        found: Object | None = self._workloads.get(stored)
        if found is None and (key in self._instances or key in self._releases):
            # Mirrors are independent: one may show an instance before the other shows its workload.
            # Nothing is stopped because an object is not mirrored yet.
            found = await self._store.get(stored)
        return found if isinstance(found, Workload) else None

    def _taken(self, key: Name, name: str) -> bool:
        found = self._all_instances.get(_new_tuple(Key, (Instance.kind, key.namespace, name)))
        return isinstance(found, Instance) and found.spec.workload != key.workload

    def _other(self, key: Name, name: str) -> Other | None:
        found = self._workloads.get(Key(Workload.kind, key.namespace, name))
        if not isinstance(found, Workload):
            return None
        releases = self._releases.of(Name(key.namespace, name))
        current = any(each.meta.name == found.status.release and is_release_of(each, found) for each in releases)
        return Other(found, current)

    def _bound_to_node(self, instance: Instance) -> bool:
        return bound_to_node(instance, self._volumes)

    def _record(self, note: Note) -> None:
        self._recorder.note(note.about, note.reason, note.message, type="warning" if note.warning else "normal")


def rest_seconds(count: int, others: int) -> float:
    """Return the pause between two plans of a workload with `count` instances, when `others` pause as well.

    Thousands of starting instances cause about one plan per second. With several such workloads each waits for all, so
    that together they cost as much as one.
    """
    alone = min(count * PACE_SECONDS, PACE_MOST)
    return min(alone * (others + 1), TOGETHER_MOST) if alone >= PACE_LEAST else 0.0


def _settled(workload: Workload | None) -> bool:
    """Return whether no roll-out needs the times since which instances are ready."""
    rollout = workload.status.rollout if workload is not None else None
    return workload is None or (rollout is not None and bool(rollout.settled_on))


def _moving(instances: Sequence[Instance]) -> list[Instance]:
    return [each for each in instances if each.spec.move is not None]


def _lost(instances: Sequence[Instance]) -> list[Instance]:
    return [each for each in instances if each.status.phase is _LOST]


def _is_claim(value: Object | None) -> bool:
    """Return whether the instance is a claim of a VM request."""
    return type(value) is Instance and value.spec.claim is not None


def _name(value: Workload | Release | Instance) -> Name:
    name = value.meta.name if isinstance(value, Workload) else value.spec.workload
    return _new_tuple(Name, (value.meta.namespace, name))  # called often; twice as fast as Name(…)
