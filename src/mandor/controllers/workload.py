"""The workload controller: as many instances as wanted, of the release that is wanted."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from mandor.controllers import slot
from mandor.controllers.base import Controller, Grouped, in_order
from mandor.controllers.dependencies import Dependencies
from mandor.controllers.draft import Draft, Note
from mandor.controllers.homes import Homes
from mandor.controllers.release_plan import current_release
from mandor.controllers.residents import rooted
from mandor.controllers.secret_change import content_ids
from mandor.controllers.secret_change_plan import with_content_ids
from mandor.controllers.slot import Other, World
from mandor.controllers.workload_plan import Seen, plan_in_steps
from mandor.controllers.writer import Writer
from mandor.lib.clock import Clock
from mandor.lib.steps import Steps, chosen, in_turns
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
"""A workload is planned as a whole: with many instances, so long for each of them lies between two plans."""
PACE_LEAST = 0.02
PACE_MOST = 2.0
TOGETHER_MOST = 4.0
"""However many others change at the same time."""

_new_tuple = tuple.__new__
_LOST = Phase.LOST  # Python 3.11 looks a member of an enum up in a function of its own each time.


class Name(NamedTuple):
    """Which workload; its object may be gone while instances of it are left."""

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
        """In order: what is looked at first may not depend on the hash of a name."""
        self._ready_nodes: set[str] = set()
        self._homes = Homes()
        self._dependencies = Dependencies()
        self._rest_until: dict[Name, float] = {}
        self._ready_since: dict[Name, dict[str, float]] = {}
        """Of workloads that are rolled out or moved: since when instances, by uid, have been ready, on the monotonic
        clock of this process. A successor counts anew: agents' clocks are not to be trusted with it."""

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._workloads = mirrors[Workload.kind]
        self._all_instances = mirrors[Instance.kind]
        self._volumes = mirrors[Volume.kind]
        self._writer = Writer(self._store, mirrors)

    def observe_all(self, changes: Sequence[Change]) -> Iterable[Name]:
        """Thousands of instances may change in a second; nearly all of them stay with their workload."""
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
            # One that is gone, or has begun anew elsewhere, sets free whoever was lost with it.
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
        """A node that comes or goes matters to those who wait with lost instances, and to daemons."""
        name = change.value.meta.name
        found = [Name(each.namespace, each.workload) for each in self._homes.see(change)]
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
        world = World(
            now=self._clock.now(),
            ready_nodes=self._ready_nodes,
            taken=lambda name: self._taken(key, name),
            rooted=self._rooted,
            ready_seconds=lambda instance: self._ready_seconds(key, instance),
            site=self._homes.still(),
            other=lambda name: self._other(key, name),
        )
        seen = Seen(workload, self._releases.of(key), instances)
        if workload is not None and workload.spec.type == "daemon":
            await in_turns(self._prepared(workload, seen.releases))
        draft = await in_turns(plan_in_steps(seen, world))
        if workload is None or workload.spec.type != "daemon":
            self._homes.forget(*key)
            # Daemons are updated at any time: on nodes that come back.
            if key in self._ready_since and _settled(workload) and not await in_turns(chosen(instances, _moving)):
                self._ready_since.pop(key, None)
        if draft.unfinished:
            self._rest_until.pop(key, None)  # It has only begun.
        if draft.writes:
            await self._note_secrets(seen.releases, draft)
            await self._writer.commit(draft.writes)
        await self._go_on(workload, draft)
        for note in draft.notes:
            self._tell(note)
        return draft.again_seconds

    async def _note_secrets(self, releases: Sequence[Release], draft: Draft) -> None:
        """A new release has the content ids of its secrets from before its first instance: what an instance reads is as
        new or newer."""
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
        """With what the plan left for later, as long as its workload is what it was; others get their turn between."""
        while planned is not None and self._workloads.get(planned.key) is planned:
            more = list(islice(draft.rest, slot.CREATED_LEAST))
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
        """Which nodes are home to the release that a plan will want."""
        current = current_release(Draft(), workload, releases)
        rollout = workload.status.rollout
        target = current.meta.name if rollout is None or rollout.release != current.meta.name else rollout.target
        yield from self._homes.prepare(next((each for each in releases if each.meta.name == target), current))

    def _ready_seconds(self, key: Name, instance: Instance) -> float:
        now = self._clock.monotonic()
        return now - self._ready_since.setdefault(key, {}).setdefault(instance.meta.uid, now)

    async def _workload(self, key: Name) -> Workload | None:
        stored = Key(Workload.kind, key.namespace, key.workload)
        found: Object | None = self._workloads.get(stored)
        if found is None and (key in self._instances or key in self._releases):
            # Mirrors run side by side: one may show an instance before the other shows its workload.
            # Nothing is stopped because of something not seen yet.
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

    def _rooted(self, instance: Instance) -> bool:
        return rooted(instance, self._volumes)

    def _tell(self, note: Note) -> None:
        self._recorder.note(note.about, note.reason, note.message, type="warning" if note.warning else "normal")


def rest_seconds(count: int, others: int) -> float:
    """Between two plans of a workload with so many instances. Thousands of them that start make one plan every second
    or so, not one for each; and where others rest as well, each waits for all, so that together they cost what one
    does."""
    alone = min(count * PACE_SECONDS, PACE_MOST)
    return min(alone * (others + 1), TOGETHER_MOST) if alone >= PACE_LEAST else 0.0


def _settled(workload: Workload | None) -> bool:
    """Nobody asks for how long its instances have been ready, unless some are on the move."""
    rollout = workload.status.rollout if workload is not None else None
    return workload is None or (rollout is not None and bool(rollout.settled_on))


def _moving(instances: Sequence[Instance]) -> list[Instance]:
    return [each for each in instances if each.spec.move is not None]


def _lost(instances: Sequence[Instance]) -> list[Instance]:
    return [each for each in instances if each.status.phase is _LOST]


def _is_claim(value: Object | None) -> bool:
    """It is its task's."""
    return type(value) is Instance and value.spec.claim is not None


def _name(value: Workload | Release | Instance) -> Name:
    name = value.meta.name if isinstance(value, Workload) else value.spec.workload
    return _new_tuple(Name, (value.meta.namespace, name))  # half the time of Name(…), and asked for a lot
