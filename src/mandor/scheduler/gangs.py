"""How much of each gang there is, kept by changes; and what is given back when a gang stays in pieces."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mandor.errors import Conflict, Unavailable
from mandor.lib.clock import Clock
from mandor.lib.quantity import Seconds
from mandor.lib.steps import Steps, at_once, in_turns, pieces
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


@dataclass(slots=True)
class GangCounts:
    """The members of one gang that matter: the others wait in the queue, or are not there yet."""

    bound: set[Key] = field(default_factory=set)
    """With a node, and not told to stop."""
    done: set[Key] = field(default_factory=set)
    """Of a batch: nobody waits for them any more."""
    coming: set[Key] = field(default_factory=set)
    """Promised, and not written yet."""
    broken_at: float | None = None
    """Since when some are bound and too few are; monotonic."""


class Gangs:
    """Only groups that are gangs are kept; a group that becomes one is counted when somebody requests."""

    def __init__(self, clock: Clock, instances: Mirror, workloads: Mirror) -> None:
        self._clock = clock
        self._instances = instances
        self._workloads = workloads
        self._rolls: dict[Gang, GangCounts] = {}
        self._uncounted: dict[Gang, None] = {}
        self._broken: dict[Gang, None] = {}
        self._stirred = asyncio.Event()

    def apply_all(self, changes: Sequence[Change]) -> None:
        """Of one kind. Without gangs, instances cost nothing."""
        if self._rolls or not isinstance(changes[0].value, Instance):
            for change in changes:
                self._apply(change)

    def _apply(self, change: Change) -> None:
        value = change.value
        if isinstance(value, Instance):
            gang = _gang_of(value)
            roll = self._rolls.get(gang)
            if roll is not None:
                self._count(roll, change.key, change.after)
                self._look(gang, roll)
        elif isinstance(value, Workload):
            self._apply_workload(change.key, change.before, change.after)

    def _apply_workload(self, key: Key, before: Object | None, after: Object | None) -> None:
        old = set(before.spec.groups) if isinstance(before, Workload) else set()
        new = _gangs_in(after) if isinstance(after, Workload) else set()
        for group in new:
            gang = (key.namespace, key.name, group)
            if gang not in self._rolls:
                self._rolls[gang] = GangCounts()
                self._uncounted[gang] = None
                self._stirred.set()
            else:
                self._look(gang, self._rolls[gang])
        for group in old - new:
            gang = (key.namespace, key.name, group)
            self._rolls.pop(gang, None)
            self._uncounted.pop(gang, None)
            self._broken.pop(gang, None)

    def _count(self, roll: GangCounts, key: Key, after: Object | None) -> None:
        roll.bound.discard(key)
        roll.done.discard(key)
        if not isinstance(after, Instance):
            return
        if after.phase is Phase.SUCCEEDED:
            roll.done.add(key)
        elif after.spec.node and not after.phase.over and after.spec.stop is None:
            roll.bound.add(key)

    @property
    def behind(self) -> bool:
        """Some are new, and not counted."""
        return bool(self._uncounted)

    def count_new(self) -> Steps[None]:
        """One look at everything for all gangs that are new; what changes meanwhile is counted as it comes."""
        if not self._uncounted:
            return
        new = {gang: self._rolls[gang] for gang in self._uncounted}
        workloads = {gang[1] for gang in new}  # nearly all instances are of others
        for piece in pieces(list(self._instances.items())):
            for each in piece:
                if each.spec.workload in workloads and isinstance(each, Instance) and _gang_of(each) in new:
                    self._count(new[_gang_of(each)], each.key, self._instances.get(each.key))
            yield len(piece)
        for gang, roll in new.items():
            if self._rolls.get(gang) is roll:  # it may have ended, or begun anew
                self._uncounted.pop(gang, None)
                self._look(gang, roll)

    def _look(self, gang: Gang, roll: GangCounts) -> None:
        """Is it whole, in pieces, or not there at all?"""
        if 0 < len(roll.bound) < self._needed(gang, roll):
            if roll.broken_at is None:
                roll.broken_at = self._clock.monotonic()
                self._broken[gang] = None
                self._stirred.set()
        else:
            roll.broken_at = None
            self._broken.pop(gang, None)

    def _needed(self, gang: Gang, roll: GangCounts) -> int:
        workload = self._workload(gang)
        if workload is None:
            return 0
        least = workload.spec.gang_of(gang[2])
        if workload.spec.type == "batch":
            batch = workload.spec.batch
            whole = batch.completions if batch is not None else workload.spec.groups[gang[2]].count
            least = min(least, whole - len(roll.done))
        return least

    def _workload(self, gang: Gang) -> Workload | None:
        found = self._workloads.get(Key(Workload.kind, gang[0], gang[1]))
        return found if isinstance(found, Workload) and gang[2] in found.spec.groups else None

    # What the scheduler requests and tells.

    def gang_members(self, request: PlacementRequest) -> GangMembers | None:
        if request.member is None:
            return None
        at_once(self.count_new())
        roll = self._rolls.get(request.member.gang)
        if roll is None:
            return None
        return GangMembers(self._needed(request.member.gang, roll), len(roll.bound), len(roll.coming - roll.bound))

    def assigned(self, request: PlacementRequest) -> None:
        if request.member is not None and request.member.gang in self._rolls:
            self._rolls[request.member.gang].coming.add(request.key)

    def given_up(self, request: PlacementRequest) -> None:
        if request.member is not None and request.member.gang in self._rolls:
            self._rolls[request.member.gang].coming.discard(request.key)

    def written(self, request: PlacementRequest, uid: str) -> None:
        """It is bound; the mirror may show that later."""
        self.given_up(request)
        now = self._instances.get(request.key)
        roll = self._rolls.get(request.member.gang) if request.member is not None else None
        if roll is None or not isinstance(now, Instance) or now.meta.uid != uid:
            return
        if not now.phase.over and now.spec.stop is None:
            roll.bound.add(request.key)
            assert request.member is not None
            self._look(request.member.gang, roll)

    async def restless(self) -> None:
        """Wait until a gang is in pieces, or may be."""
        while not (self._broken or self._uncounted):
            self._stirred.clear()
            await self._stirred.wait()

    def overdue(self) -> Iterator[tuple[Workload, str, GangCounts]]:
        """Gangs that have been in pieces for too long, with their groups."""
        for gang in sorted(self._broken):
            workload, roll = self._workload(gang), self._rolls[gang]
            facts = workload.spec.groups[gang[2]].gang if workload is not None else None
            if workload is None or facts is None or roll.broken_at is None:
                continue
            if self._clock.monotonic() - roll.broken_at >= facts.timeout:
                yield workload, gang[2], roll


class BrokenGangs:
    """Has the members of a gang that stayed in pieces stop: their controller replaces them, and they wait together."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        recorder: Recorder,
        gangs: Gangs,
        instances: Mirror,
        kept: Callable[[Workload, str], bool],
    ) -> None:
        """`kept`: is this group a gang to its scheduler profile, and that of this scheduler?"""
        self._store = store
        self._clock = clock
        self._recorder = recorder
        self._gangs = gangs
        self._instances = instances
        self._kept = kept

    async def run(self) -> None:
        while True:
            await self._gangs.restless()
            await self._clock.sleep(LOOK_SECONDS)
            await in_turns(self._gangs.count_new())
            for workload, group, roll in list(self._gangs.overdue()):
                if self._kept(workload, group):
                    await self._give_back(workload, group, roll)

    async def _give_back(self, workload: Workload, group: str, roll: GangCounts) -> None:
        facts = workload.spec.groups[group].gang
        assert facts is not None
        needed = workload.spec.gang_of(group)
        why = f"its gang is in pieces: {len(roll.bound)} of {needed} members had a node for {Seconds(facts.timeout)}"
        members = [self._instances.get(key) for key in sorted(roll.bound, key=lambda key: (len(key.name), key.name))]
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
                    raise  # The fence: somebody else leads now.
                return  # One of them has changed; look again.
            except Unavailable as error:
                log.warning("the gang %s goes on holding its nodes: %s", workload.meta.name, error)
                return
        roll.broken_at = self._clock.monotonic()
        self._recorder.note(workload, "GangGivenBack", f"group {group}: {why}", type="warning")


def _gang_of(instance: Instance) -> Gang:
    return instance.meta.namespace, instance.spec.workload, instance.spec.group


def _gangs_in(workload: Workload) -> set[str]:
    return {name for name, group in workload.spec.groups.items() if group.gang is not None}
