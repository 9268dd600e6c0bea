"""The scheduling cycle of a gang: gathers its members, decides them together, assigns all of them or none."""

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import structs

from mandor.lib.clock import Clock
from mandor.model.meta import Key
from mandor.placement.consult import unasked
from mandor.placement.decision import NOMINATED, Decision
from mandor.placement.framework.handle import GangMembers
from mandor.placement.framework.points import CAPACITY_EVENTS, ClusterEvent, GangBinding
from mandor.placement.framework.profile import Profile
from mandor.placement.gang import GangDecision, GangTrial, nomination, refusal
from mandor.placement.table import Table
from mandor.scheduler.assigner import Assigner
from mandor.scheduler.attempt import Attempt, AttemptState
from mandor.scheduler.consultations import Consultations
from mandor.scheduler.deciding import Deciding
from mandor.scheduler.gangs import Gangs
from mandor.scheduler.nominations import Nominations
from mandor.scheduler.outcomes import Outcomes
from mandor.scheduler.pending_work import PendingWork
from mandor.scheduler.queue import SchedulingQueue
from mandor.scheduler.requeue import PLUGIN_FAULT, Requeue
from mandor.scheduler.status_writer import StatusWriter
from mandor.scheduler.watchdog import Watchdog

Placed = tuple[Attempt, Decision]
Facts = tuple[object, ...]
STEPS_MOST = 16
"""Steps in which all members of a gang are decided once."""
TAKEN = 64
"""Members assigned in a row before other tasks run."""


class GangCycle:
    """Runs one gang at a time; other tasks run between its steps, but no other scheduling cycle."""

    def __init__(
        self,
        queue: SchedulingQueue,
        gangs: Gangs,
        table: Table,
        deciding: Deciding,
        nominations: Nominations,
        consultations: Consultations,
        assigner: Assigner,
        outcomes: Outcomes,
        requeue: Requeue,
        status: StatusWriter,
        work: PendingWork,
        watchdog: Watchdog,
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._gangs = gangs
        self._table = table
        self._deciding = deciding
        self._nominations = nominations
        self._consultations = consultations
        self._assigner = assigner
        self._outcomes = outcomes
        self._requeue = requeue
        self._status = status
        self._work = work
        self._watchdog = watchdog
        self._clock = clock

    def gang_members(self, attempt: Attempt, profile: Profile) -> GangMembers | None:
        """Return the counts of a gang that has to be decided as a whole now; None: the member is decided alone."""
        if attempt.request.member is None or not profile.gangs:
            return None
        gang_members = self._gangs.gang_members(attempt.request)
        if gang_members is None or gang_members.bound + gang_members.coming >= gang_members.needed:
            self._queue.unpark(attempt.request.member.gang)
            return None
        return gang_members

    async def run(self, attempt: Attempt, profile: Profile, gang_members: GangMembers, most: int) -> None:
        """Decide the gang of an attempt. `most`: members decided in a row before other tasks run."""
        members = self._queue.gather(attempt)
        if profile.consults and not self._consulted(members, profile):
            return
        if gang_members.coming:
            # Members are being bound: soon the gang is complete, or all of it has to be decided again.
            first, *others = self._out(members)
            self._queue.back_off(first, now=self._clock.monotonic())
            for each in others:
                self._queue.park(each)
            return
        there = gang_members.bound + len(members)
        if there < gang_members.needed:
            message = f"the gang has {there} of {gang_members.needed} members"
            self._put_back(members, Decision(attempt.request.key, message=message))
            return
        requests = {each.request.key: each.request for each in members}
        trial = GangTrial(
            profile,
            tuple(requests.values()),
            self._table,
            least=gang_members.needed - gang_members.bound,
            consulted={each.request.key: each.consulted for each in members if each.consulted is not None},
            watch=self._watchdog,
            guard=self._watchdog.run,
            moment=self._nominations.moment(*members),
            beside=[each.request for gang in self._gangs.beside(attempt.request) for each in self._queue.fellows(gang)],
        )
        # Each step counts the members before it again: a few large steps cost less than many small ones.
        most = max(most, len(members) // STEPS_MOST)
        decision = await self._decide(trial, attempt, most, aside=len(members) > TAKEN)
        for each in members:
            each.consulted = None
        left = [each for each in members if self._queue.state(each.request.key) is AttemptState.DECIDING]
        if len(left) < len(members) or any(each.request != requests[each.request.key] for each in left):
            self._retry(left)  # A member has left or has changed.
        elif any(unasked(profile, each.state) for each in decision.placed):
            self._retry(left)
        elif decision.fault:
            self._fault(members, profile, decision)
        elif decision.placed:
            await self._placed(members, profile, gang_members, decision)
        elif decision.nominated:
            self._nominated(members, profile, gang_members, decision)
        else:
            self._refused(members, profile, gang_members, decision)

    async def _decide(self, trial: GangTrial, attempt: Attempt, most: int, *, aside: bool) -> GangDecision:
        """`aside`: other tasks run once more before the decision is returned, as assigning it takes a while."""
        while True:
            with self._deciding.following(attempt):
                decision = trial.step(most)
            if decision is not None and (not aside or trial.hurried):
                return decision
            await asyncio.sleep(0)
            if decision is not None and trial.holds:
                return decision

    def _consulted(self, members: Sequence[Attempt], profile: Profile) -> bool:
        """Return whether all answers are there; if not, start the missing consultations and park the others."""
        missing = [each for each in members if each.consulted is None]
        member = members[0].request.member
        assert member is not None
        running = any(each.state is AttemptState.CONSULTING for each in self._queue.fellows(member.gang))
        if not missing and not running:
            return True
        for each in self._out(members):
            if each.consulted is None:
                self._consultations.start(each, profile)
            else:
                self._queue.park(each)
        return False

    async def _placed(
        self, members: Sequence[Attempt], profile: Profile, gang_members: GangMembers, decision: GangDecision
    ) -> None:
        by_key = {each.request.key: each for each in members}
        placed = [(by_key.pop(each.key), each) for each in decision.placed]
        first = gang_members.needed - gang_members.bound
        together = GangBinding(first)
        for _, each in placed[:first]:
            for plugin in profile.gangs:
                each.state.write(plugin.name, together)
        await self._take(placed[:first], placed[first:], profile)
        self._retry(list(by_key.values()))  # The gang is complete without these: they are decided one by one.

    async def _take(self, first: Sequence[Placed], others: Sequence[Placed], profile: Profile) -> None:
        """Assign the members. The first are written together or not at all; the others wait for them at Permit.

        Each member stays in the queue until it is counted, so that no other cycle decides it.
        """
        seen = {attempt.request.key: self._facts(attempt, each) for attempt, each in (*first, *others)}
        if not await self._assign_all(first, seen, profile):
            self._retry([each for each, _ in (*first, *others)])
            return
        for number, (attempt, decision) in enumerate(others, 1):
            if self._facts(attempt, decision) != seen[decision.key]:
                self._retry([attempt])
            elif self._queue.drop_held(attempt):
                self._deciding.record(attempt, profile, decision)
                if self._assigner.take(attempt, profile, decision):
                    self._work.binds.append(attempt)
            await _pause_after(number)

    async def _assign_all(self, placed: Sequence[Placed], seen: Mapping[Key, Facts], profile: Profile) -> bool:
        """Assign members as one bind batch; return False, with none of them assigned, if one has changed."""
        assigned: list[Attempt] = []
        for number, (attempt, decision) in enumerate(placed, 1):
            unchanged = self._facts(attempt, decision) == seen[decision.key] and self._queue.drop_held(attempt)
            if unchanged:
                self._deciding.record(attempt, profile, decision)
            if not unchanged or not self._assigner.assign(attempt, profile, decision):
                for each in assigned:
                    self._outcomes.failed(each)
                return False
            assigned.append(attempt)
            await _pause_after(number)
        batches = self._outcomes.batches
        batches.open(assigned)
        for number, attempt in enumerate(assigned, 1):
            if attempt in batches and self._assigner.admit(attempt):
                self._outcomes.ready(attempt)
            await _pause_after(number)
        return True

    def _facts(self, attempt: Attempt, decision: Decision) -> Facts:
        """Return what must not change between the decision and the assignment."""
        node = self._table.node(decision.node)
        return attempt.request, None if node is None else node.meta.version

    def _refused(
        self, members: Sequence[Attempt], profile: Profile, gang_members: GangMembers, decision: GangDecision
    ) -> None:
        worst = decision.refused
        assert worst is not None, "a plugin refused each member that did not fit"
        message = refusal(decision, gang_members.needed, gang_members.bound)
        refused = Decision(worst.key, message=message, retry_on=worst.retry_on, blamed=worst.blamed)
        self._deciding.record(next(each for each in members if each.request.key == worst.key), profile, refused)
        self._put_back(members, refused)

    def _nominated(
        self, members: Sequence[Attempt], profile: Profile, gang_members: GangMembers, decision: GangDecision
    ) -> None:
        """Hold room for all members; the first one stays unschedulable for all, the others are parked."""
        message = nomination(decision, gang_members.needed, gang_members.bound)
        first, worst = members[0], decision.refused
        again = decision.nominated[0].again
        whole = structs.replace(
            decision.nominated[0],
            key=first.request.key,
            message=message,
            victims=tuple(key for each in decision.nominated for key in each.victims),
        )
        self._deciding.record(first, profile, whole)
        now = self._clock.monotonic()
        for each in self._out(members):
            if each is not first:
                self._queue.park(each)
                continue
            self._queue.put_back(
                each,
                now=now,
                retry_on=worst.retry_on | {ClusterEvent.ROOM_FREED} if worst is not None else CAPACITY_EVENTS,
                blamed=worst.blamed if worst is not None else (),
                wake_at=None if again is None else now + again,
            )
        nominated = {each.key: structs.replace(each, message=message) for each in decision.nominated}
        held = [(each, nominated.get(each.request.key) or Decision(each.request.key)) for each in members]
        held.sort(key=lambda each: not each[1].nominated)
        preempts = self._nominations.hold(*held)
        for each, made in held:
            if not preempts or not made.nominated:
                self._status.refused(each.request.key, each.uid, NOMINATED, message, made.nominated)

    def _put_back(self, members: Sequence[Attempt], decision: Decision) -> None:
        """Make the member that `decision` is about unschedulable, and park the others."""
        first = next(each for each in members if each.request.key == decision.key)
        others = [each for each in self._out(members) if each is not first]
        self._requeue.unschedulable(first, decision)
        self._nominations.hold(*((each, decision) for each in others))
        self._park(others, "Unschedulable", decision.message)

    def _fault(self, members: Sequence[Attempt], profile: Profile, decision: GangDecision) -> None:
        first, *others = self._out(members)
        made = Decision(first.request.key, message=decision.message, fault=decision.fault)
        self._deciding.record(first, profile, made)
        self._requeue.after_fault(first, decision.message)
        self._park(others, PLUGIN_FAULT, decision.message)

    def _park(self, members: Sequence[Attempt], reason: str, message: str) -> None:
        for each in members:
            self._queue.park(each)
            self._status.refused(each.request.key, each.uid, reason, message)

    def _retry(self, members: Sequence[Attempt]) -> None:
        for each in self._out(members):
            self._queue.retry(each)

    def _out(self, members: Sequence[Attempt]) -> list[Attempt]:
        """Take members out of the queue; return those that were still there."""
        return [each for each in members if self._queue.drop_held(each)]


async def _pause_after(number: int) -> None:
    """Let other tasks run after every `TAKEN` members."""
    if number % TAKEN == 0:
        await asyncio.sleep(0)
