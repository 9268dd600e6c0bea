"""The cycle of a gang: gathers its members, tries them out together, and takes them all or puts them all back."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from msgspec import structs

from mandor.lib.clock import Clock
from mandor.model.meta import Key
from mandor.placement.consult import unasked
from mandor.placement.cycle import NOMINATED, Decision, Moment
from mandor.placement.framework.context import Context
from mandor.placement.framework.handle import GangMembers
from mandor.placement.framework.points import ANYTHING, ClusterEvent, GangBinding
from mandor.placement.framework.profile import Profile
from mandor.placement.gang import GangDecision, GangTrial, nomination, refusal
from mandor.placement.table import Table
from mandor.scheduler.bind_batch import BindBatches
from mandor.scheduler.gangs import Gangs
from mandor.scheduler.queue import Entry, Place, SchedulingQueue
from mandor.scheduler.view import Promise
from mandor.scheduler.watchdog import Watchdog

Placed = tuple[Entry, Decision]
STEPS_MOST = 16
"""So many steps, at most, for one look at all members."""
TAKEN = 64
"""So many are given their room in a row."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The scheduler's own steps, which a gang takes like anybody else."""

    inquire: Callable[[Entry, Profile], None]
    promise: Callable[[Entry, Profile, Decision], Promise | None]
    admit: Callable[[Promise, Context], Promise | None]
    """Reserve and Permit; None: it has failed, or goes on by itself."""
    take: Callable[[Entry, Profile, Decision], Promise | None]
    """Both, for one that is in no party."""
    write: Callable[[Promise], None]
    failed: Callable[[Promise], None]
    wait: Callable[[Entry, Decision], None]
    fault: Callable[[Entry, str], None]
    tell: Callable[[Key, str, str, str, str], None]
    note: Callable[[Entry, Profile, Decision], None]
    """For those who ask later, before it is counted."""
    hold: Callable[..., bool]
    """Room for these, where they are nominated. True: somebody has to go, and these are told when that is written."""
    moment: Callable[..., Moment]
    following: Callable[[Entry], AbstractContextManager[None]]
    """What is done in it is part of this one's story."""


class GangCycle:
    """Others may run between its steps, but no other cycle."""

    def __init__(
        self,
        queue: SchedulingQueue,
        gangs: Gangs,
        table: Table,
        watchdog: Watchdog,
        clock: Clock,
        steps: Steps,
        parties: BindBatches,
    ) -> None:
        self._queue = queue
        self._gangs = gangs
        self._table = table
        self._watchdog = watchdog
        self._clock = clock
        self._steps = steps
        self._parties = parties

    def gang_members(self, entry: Entry, profile: Profile) -> GangMembers | None:
        """Of the gang that has to be decided as a whole now; None: this one is decided by itself."""
        if entry.request.member is None or not profile.gangs:
            return None
        gang_members = self._gangs.gang_members(entry.request)
        if gang_members is None or gang_members.bound + gang_members.coming >= gang_members.needed:
            self._queue.unpark(entry.request.member.gang)
            return None
        return gang_members

    async def run(self, entry: Entry, profile: Profile, gang_members: GangMembers, most: int) -> None:
        """`most`: so many members are decided in a row, then others get their turn."""
        members = self._queue.gather(entry)
        if profile.consults and not self._asked(members, profile):
            return
        if gang_members.coming:
            # What becomes of them is known soon, and it makes the gang whole or leaves all of it to be decided.
            first, *others = self._out(members)
            self._queue.back_off(first, now=self._clock.monotonic())
            for each in others:
                self._queue.park(each)
            return
        there = gang_members.bound + len(members)
        if there < gang_members.needed:
            self._put_back(
                members, Decision(entry.request.key, message=f"{there} of {gang_members.needed} members are there")
            )
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
            moment=self._steps.moment(*members),
        )
        # Each step counts those before it again: a few large ones cost less than many small ones.
        most = max(most, len(members) // STEPS_MOST)
        decision = await self._decided(trial, entry, most, aside=len(members) > TAKEN)
        for each in members:
            each.consulted = None
        still = [each for each in members if self._queue.place(each.request.key) is Place.DECIDED_ON]
        if len(still) < len(members) or any(each.request != requests[each.request.key] for each in still):
            self._again(still)  # Somebody has left, or is not what it was.
        elif any(unasked(profile, each.state) for each in decision.placed):
            self._again(still)
        elif decision.fault:
            self._fault(self._out(members), decision.message)
        elif decision.placed:
            await self._placed(members, profile, gang_members, decision)
        elif decision.nominated:
            self._nominated(members, profile, gang_members, decision)
        else:
            self._refused(members, profile, gang_members, decision)

    async def _decided(self, trial: GangTrial, entry: Entry, most: int, *, aside: bool) -> GangDecision:
        """`aside`: what follows takes a while, and others have their turn before it."""
        while True:
            with self._steps.following(entry):
                decision = trial.step(most)
            if decision is not None and (not aside or trial.hurried):
                return decision
            await asyncio.sleep(0)
            if decision is not None and trial.holds:
                return decision

    def _asked(self, members: Sequence[Entry], profile: Profile) -> bool:
        """False: answers about some of them have to come first; the last of them brings all together again."""
        unasked = [each for each in members if each.consulted is None]
        member = members[0].request.member
        assert member is not None
        asking = any(each.place is Place.ASKED_ABOUT for each in self._queue.fellows(member.gang))
        if not unasked and not asking:
            return True
        for each in self._out(members):
            if each.consulted is None:
                self._steps.inquire(each, profile)
            else:
                self._queue.park(each)
        return False

    async def _placed(
        self, members: Sequence[Entry], profile: Profile, gang_members: GangMembers, decision: GangDecision
    ) -> None:
        by_key = {each.request.key: each for each in members}
        placed = [(by_key.pop(each.key), each) for each in decision.placed]
        first = gang_members.needed - gang_members.bound
        together = GangBinding(first)
        for _, each in placed[:first]:
            for plugin in profile.gangs:
                each.state.write(plugin.name, together)
        await self._take(placed[:first], placed[first:], profile)
        self._again(list(by_key.values()))  # The gang is whole without these: they go on by themselves.

    async def _take(self, first: Sequence[Placed], others: Sequence[Placed], profile: Profile) -> None:
        """The first are written together or not at all; the others wait for them by the Permit of their plugin. Some at
        a time: each is in the queue until its room is counted, so that nobody else decides about it."""
        steps, parties = self._steps, self._parties
        promises: list[Promise] = []
        seen = {entry.request.key: self._facts(entry, each) for entry, each in (*first, *others)}
        for number, (entry, decision) in enumerate(first, 1):
            made = None
            if self._facts(entry, decision) == seen[decision.key] and self._queue.drop_held(entry):
                steps.note(entry, profile, decision)
                made = steps.promise(entry, profile, decision)
            if made is None:
                # It is gone, or its node is: the others are decided again with whoever is left.
                for each in promises:
                    steps.failed(each)
                self._again([each for each, _ in (*first, *others)])
                return
            promises.append(made)
            if number % TAKEN == 0:
                await asyncio.sleep(0)
        parties.open(promises)
        for number, each in enumerate(promises, 1):
            assert each.context is not None
            if each in parties and steps.admit(each, each.context) is not None:
                parties.arrive(each)
            if number % TAKEN == 0:
                await asyncio.sleep(0)
        for number, (entry, decision) in enumerate(others, 1):
            if self._facts(entry, decision) != seen[decision.key]:
                self._again([entry])
            elif self._queue.drop_held(entry):
                late = steps.take(entry, profile, decision)
                if late is not None:
                    steps.write(late)
            if number % TAKEN == 0:
                await asyncio.sleep(0)

    def _facts(self, entry: Entry, decision: Decision) -> tuple[object, ...]:
        """What has to be as it was when it was decided."""
        node = self._table.node(decision.node)
        return entry.request, None if node is None else node.meta.version

    def _refused(
        self, members: Sequence[Entry], profile: Profile, gang_members: GangMembers, decision: GangDecision
    ) -> None:
        worst = decision.refused
        assert worst is not None, "each that did not fit was refused by somebody"
        message = refusal(decision, gang_members.needed, gang_members.bound)
        told = Decision(worst.key, message=message, retry_on=worst.retry_on, blamed=worst.blamed)
        self._steps.note(next(each for each in members if each.request.key == worst.key), profile, told)
        self._put_back(members, told)

    def _nominated(
        self, members: Sequence[Entry], profile: Profile, gang_members: GangMembers, decision: GangDecision
    ) -> None:
        """Room is held for all of them; one speaks for all."""
        message = nomination(decision, gang_members.needed, gang_members.bound)
        first, worst = members[0], decision.refused
        again = decision.nominated[0].again
        told = structs.replace(
            decision.nominated[0],
            key=first.request.key,
            message=message,
            victims=tuple(key for each in decision.nominated for key in each.victims),
        )
        self._steps.note(first, profile, told)
        now = self._clock.monotonic()
        for each in self._out(members):
            if each is not first:
                self._queue.park(each)
                continue
            self._queue.put_back(
                each,
                now=now,
                retry_on=worst.retry_on | {ClusterEvent.ROOM_FREED} if worst is not None else ANYTHING,
                blamed=worst.blamed if worst is not None else (),
                wake_at=None if again is None else now + again,
            )
        nominated = {each.key: structs.replace(each, message=message) for each in decision.nominated}
        held = [(each, nominated.get(each.request.key) or Decision(each.request.key)) for each in members]
        held.sort(key=lambda each: not each[1].nominated)
        written = self._steps.hold(*held)
        for each, made in held:
            if not written or not made.nominated:
                self._steps.tell(each.request.key, each.uid, NOMINATED, message, made.nominated)

    def _put_back(self, members: Sequence[Entry], decision: Decision) -> None:
        """`decision` is about the one that speaks for all."""
        first = next(each for each in members if each.request.key == decision.key)
        others = [each for each in self._out(members) if each is not first]
        self._steps.wait(first, decision)
        self._steps.hold(*((each, decision) for each in others))
        self._park(others, "Unschedulable", decision.message)

    def _fault(self, members: Sequence[Entry], message: str) -> None:
        self._steps.fault(members[0], message)
        self._park(members[1:], "PluginFault", message)

    def _park(self, members: Sequence[Entry], reason: str, message: str) -> None:
        """Another one speaks for them: what wakes it wakes them."""
        for each in members:
            self._queue.park(each)
            self._steps.tell(each.request.key, each.uid, reason, message, "")

    def _again(self, members: Sequence[Entry]) -> None:
        for each in self._out(members):
            self._queue.retry(each)

    def _out(self, members: Sequence[Entry]) -> list[Entry]:
        """Out of the queue, for now."""
        return [each for each in members if self._queue.drop_held(each)]
