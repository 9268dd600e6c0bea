"""Counts the members of each gang, and stops the members of gangs that stay incomplete."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mandor.errors import Conflict, Unavailable
from mandor.lib.clock import Clock
from mandor.lib.quantity import Seconds
from mandor.lib.steps import Steps, at_once, pieces
from mandor.lib.turns import in_turns
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.phase import Phase
from mandor.model.workload import Workload
from mandor.placement.framework.handle import GangMembers
from mandor.placement.framework.request import PlacementRequest
from mandor.scheduler.queue import Gang
from mandor.store.base import WRITES_MOST, Change, Put, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Seconds between two checks while a gang is incomplete."""


@dataclass(slots=True)
class GangCounts:
    """The members of one gang that have a node or have finished."""

    bound: set[Key] = field(default_factory=set)
    """Members with a node that are not stopping."""
    done: set[Key] = field(default_factory=set)
    """Members of a batch that have succeeded."""
    coming: set[Key] = field(default_factory=set)
    """Members with an assigned node whose bind is not written yet."""
    broken_at: float | None = None
    """Monotonic time since when some members are bound, but too few."""


class Gangs:
    """Counts for groups that are gangs; a group that becomes one is counted before the next decision."""

    def __init__(self, clock: Clock, instances: Mirror, workloads: Mirror) -> None:
        self._clock = clock
        self._instances = instances
        self._workloads = workloads
        self._counts: dict[Gang, GangCounts] = {}
        self._uncounted: dict[Gang, None] = {}
        self._broken: dict[Gang, None] = {}
        self._changed = asyncio.Event()

    def apply_all(self, changes: Sequence[Change]) -> None:
        """Apply changes of one kind; without gangs, changes of instances are skipped."""
        if self._counts or not isinstance(changes[0].value, Instance):
            for change in changes:
                self._apply(change)

    def _apply(self, change: Change) -> None:
        value = change.value
        if isinstance(value, Instance):
            gang = _gang_of(value)
            counts = self._counts.get(gang)
            if counts is not None:
                self._count(counts, change.key, change.after)
                self._look(gang, counts)
        elif isinstance(value, Workload):
            self._apply_workload(change.key, change.before, change.after)

    def _apply_workload(self, key: Key, before: Object | None, after: Object | None) -> None:
        old = set(before.spec.groups) if isinstance(before, Workload) else set()
        new = _gangs_in(after) if isinstance(after, Workload) else set()
        for group in new:
            gang = (key.namespace, key.name, group)
            if gang not in self._counts:
                self._counts[gang] = GangCounts()
                self._uncounted[gang] = None
                self._changed.set()
            else:
                self._look(gang, self._counts[gang])
        for group in old - new:
            gang = (key.namespace, key.name, group)
            self._counts.pop(gang, None)
            self._uncounted.pop(gang, None)
            self._broken.pop(gang, None)

    def _count(self, counts: GangCounts, key: Key, after: Object | None) -> None:
        counts.bound.discard(key)
        counts.done.discard(key)
        if not isinstance(after, Instance):
            return
        if after.phase is Phase.SUCCEEDED:
            counts.done.add(key)
        elif after.spec.node and not after.phase.over and after.spec.stop is None:
            counts.bound.add(key)

    def beside(self, request: PlacementRequest) -> list[Gang]:
        """Return the other gangs of the workload of a member."""
        assert request.member is not None
        workload = self._workload(request.member.gang)
        namespace, name, group = request.member.gang
        return [(namespace, name, each) for each in sorted(_gangs_in(workload) - {group})] if workload else []

    @property
    def behind(self) -> bool:
        """Return whether a new gang has not been counted yet."""
        return bool(self._uncounted)

    def count_new(self) -> Steps[None]:
        """Count all new gangs in one pass over the instances; changes meanwhile are applied as they come."""
        if not self._uncounted:
            return
        new = {gang: self._counts[gang] for gang in self._uncounted}
        workloads = {gang[1] for gang in new}  # most instances belong to other workloads
        for piece in pieces(list(self._instances.items())):
            for each in piece:
                if each.spec.workload in workloads and isinstance(each, Instance) and _gang_of(each) in new:
                    self._count(new[_gang_of(each)], each.key, self._instances.get(each.key))
            yield len(piece)
        for gang, counts in new.items():
            if self._counts.get(gang) is counts:  # it may have been removed or replaced
                self._uncounted.pop(gang, None)
                self._look(gang, counts)

    def _look(self, gang: Gang, counts: GangCounts) -> None:
        """Update whether a gang is incomplete."""
        if 0 < len(counts.bound) < self._needed(gang, counts):
            if counts.broken_at is None:
                counts.broken_at = self._clock.monotonic()
                self._broken[gang] = None
                self._changed.set()
        else:
            counts.broken_at = None
            self._broken.pop(gang, None)

    def _needed(self, gang: Gang, counts: GangCounts) -> int:
        workload = self._workload(gang)
        if workload is None:
            return 0
        least = workload.spec.gang_of(gang[2])
        if workload.spec.type == "batch":
            batch = workload.spec.batch
            whole = batch.completions if batch is not None else workload.spec.groups[gang[2]].count
            least = min(least, whole - len(counts.done))
        return least

    def _workload(self, gang: Gang) -> Workload | None:
        found = self._workloads.get(Key(Workload.kind, gang[0], gang[1]))
        return found if isinstance(found, Workload) and gang[2] in found.spec.groups else None

    # Called by the scheduler.

    def gang_members(self, request: PlacementRequest) -> GangMembers | None:
        if request.member is None:
            return None
        at_once(self.count_new())
        counts = self._counts.get(request.member.gang)
        if counts is None:
            return None
        return GangMembers(
            self._needed(request.member.gang, counts), len(counts.bound), len(counts.coming - counts.bound)
        )

    def assigned(self, request: PlacementRequest) -> None:
        if request.member is not None and request.member.gang in self._counts:
            self._counts[request.member.gang].coming.add(request.key)

    def given_up(self, request: PlacementRequest) -> None:
        if request.member is not None and request.member.gang in self._counts:
            self._counts[request.member.gang].coming.discard(request.key)

    def written(self, request: PlacementRequest, uid: str) -> None:
        """Count a member as bound before the mirror shows it."""
        self.given_up(request)
        now = self._instances.get(request.key)
        counts = self._counts.get(request.member.gang) if request.member is not None else None
        if counts is None or not isinstance(now, Instance) or now.meta.uid != uid:
            return
        if not now.phase.over and now.spec.stop is None:
            counts.bound.add(request.key)
            assert request.member is not None
            self._look(request.member.gang, counts)

    async def wait_for_broken(self) -> None:
        """Wait until a gang is incomplete, or may be."""
        while not (self._broken or self._uncounted):
            self._changed.clear()
            await self._changed.wait()

    def overdue(self) -> Iterator[tuple[Workload, str, GangCounts]]:
        """Return gangs that have been incomplete for longer than their timeout, with their groups."""
        for gang in sorted(self._broken):
            workload, counts = self._workload(gang), self._counts[gang]
            facts = workload.spec.groups[gang[2]].gang if workload is not None else None
            if workload is None or facts is None or counts.broken_at is None:
                continue
            if self._clock.monotonic() - counts.broken_at >= facts.timeout:
                yield workload, gang[2], counts


class BrokenGangs:
    """Stops the members of incomplete gangs: their controller replaces them, and the gang waits as a whole."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        recorder: Recorder,
        gangs: Gangs,
        instances: Mirror,
        kept: Callable[[Workload, str], bool],
    ) -> None:
        """`kept` returns whether a group is a gang in its profile and belongs to this scheduler."""
        self._store = store
        self._clock = clock
        self._recorder = recorder
        self._gangs = gangs
        self._instances = instances
        self._kept = kept

    async def run(self) -> None:
        while True:
            await self._gangs.wait_for_broken()
            await self._clock.sleep(LOOK_SECONDS)
            await in_turns(self._gangs.count_new())
            for workload, group, counts in list(self._gangs.overdue()):
                if self._kept(workload, group):
                    await self._release(workload, group, counts)

    async def _release(self, workload: Workload, group: str, counts: GangCounts) -> None:
        facts = workload.spec.groups[group].gang
        assert facts is not None
        needed = workload.spec.gang_of(group)
        why = (
            f"the gang was incomplete: {len(counts.bound)} of {needed} members had a node for {Seconds(facts.timeout)}"
        )
        members = [self._instances.get(key) for key in sorted(counts.bound, key=lambda key: (len(key.name), key.name))]
        stops = [
            Put(each.stopping(why, at=self._clock.now()))
            for each in members
            if isinstance(each, Instance) and each.spec.stop is None and not each.phase.over
        ]
        for start in range(0, len(stops), WRITES_MOST):
            try:
                await self._store.commit(*stops[start : start + WRITES_MOST])
            except Conflict as error:
                if error.facts.get("key") not in {each.key for each in stops}:
                    raise  # The fence: another scheduler leads now.
                return  # A member has changed: check again.
            except Unavailable as error:
                log.warning(
                    "the store is unavailable, the incomplete gang %s keeps its nodes: %s", workload.meta.name, error
                )
                return
        counts.broken_at = self._clock.monotonic()
        self._recorder.note(workload, "GangReleased", f"group {group}: {why}", type="warning")


def _gang_of(instance: Instance) -> Gang:
    return instance.meta.namespace, instance.spec.workload, instance.spec.group


def _gangs_in(workload: Workload) -> set[str]:
    return {name for name, group in workload.spec.groups.items() if group.gang is not None}
