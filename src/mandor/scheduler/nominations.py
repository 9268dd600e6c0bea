"""Nominations: room that is held for pending instances, and the preemptions that make it."""

from collections.abc import Sequence
from dataclasses import dataclass

from mandor.lib.clock import Clock
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.conversion import PlacementState, placement_state
from mandor.placement.decision import Decision, Moment
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.pending_work import PendingWork
from mandor.scheduler.preempting import Claim, Preemption
from mandor.scheduler.queue import SchedulingQueue
from mandor.scheduler.view import View
from mandor.store.base import Change
from mandor.store.mirror import Mirror


@dataclass(frozen=True, slots=True)
class _AwaitedRoom:
    """The victims of one preemption that still take room, and the pending instances that get the room."""

    victims: set[Key]
    claimants: tuple[Key, ...]


class Nominations:
    """Holds and withdraws room in the table for instances in the queue."""

    def __init__(self, view: View, queue: SchedulingQueue, instances: Mirror, work: PendingWork, clock: Clock) -> None:
        self._view = view
        self._queue = queue
        self._instances = instances
        self._clock = clock
        self._work = work
        self._awaited: dict[Key, _AwaitedRoom] = {}
        """By victim."""

    def moment(self, *attempts: Attempt) -> Moment:
        """Return the time, and the seconds that all of these may still wait for stopping instances."""
        now = self._clock.monotonic()
        waited = [0.0 if each.patient_from is None else now - each.patient_from for each in attempts]
        left = min(each.request.shape.patience - long for each, long in zip(attempts, waited, strict=True))
        return Moment(self._clock.now(), max(0.0, left))

    def hold(self, *held: tuple[Attempt, Decision]) -> bool:
        """Hold room as decided, for one attempt or for all of a gang.

        Return whether a preemption is ordered, which also writes the status of these instances.
        """
        for attempt, decision in held:
            if decision.nominated and attempt.patient_from is None:
                attempt.patient_from = self._clock.monotonic()
            self._view.nominate(attempt, decision.nominated, decision.request)
        if not any(decision.victims for _, decision in held):
            return False
        order = self._order(held)
        if order is None:
            for attempt, _ in held:
                self._withdraw(attempt.request.key)
            return False
        for attempt, decision in held:
            if decision.nominated:
                self.displace(decision.nominated, attempt.request.priority)
        for victim in order.victims:
            self._view.state.assume_stopping(victim, order.at)
        self._work.preemptions.append(order)
        victims = {each.key for each in order.victims}
        awaited = _AwaitedRoom(victims, tuple(claim.instance.key for claim in order.claims))
        self._awaited.update(dict.fromkeys(victims, awaited))
        return True

    def apply_all(self, changes: Sequence[Change]) -> None:
        """Retry pending instances without a pause once the last victim of their preemption has ended.

        The pause limits retries that may fail again; here the room is free, and each such retry follows a preemption.
        """
        for change in changes if self._awaited else ():
            awaited = self._awaited.get(change.key)
            if awaited is None or _takes_room(change):
                continue
            del self._awaited[change.key]
            awaited.victims.discard(change.key)
            if not awaited.victims:
                for key in awaited.claimants:
                    self._queue.activate(key)

    def failed(self, order: Preemption) -> None:
        """Withdraw the nominations of a preemption that could not be written."""
        for victim in order.victims:
            self._awaited.pop(victim.key, None)
            self._view.state.reset(victim.key)
        for claim in order.claims:
            if self._view.state.held(claim.instance.key) == claim.node:
                self._withdraw(claim.instance.key)

    def displace(self, node: str, priority: int) -> None:
        """Withdraw the nominations of lower priority on a node."""
        for key in self._view.displaced(node, priority):
            self._withdraw(key)

    def _order(self, held: Sequence[tuple[Attempt, Decision]]) -> Preemption | None:
        """Return the preemption to write; None: an instance is gone, or not where the table counts it."""
        claims: list[Claim] = []
        victims: list[Instance] = []
        for attempt, decision in held:
            if not decision.nominated:
                continue
            instance, node = self._instances.get(attempt.request.key), self._view.table.node(decision.nominated)
            if not isinstance(instance, Instance) or instance.meta.uid != attempt.uid or node is None:
                return None
            found = [self._instances.get(key) for key in decision.victims]
            there = [each for each in found if isinstance(each, Instance) and each.node == decision.nominated]
            if len(there) < len(found):
                return None
            claims.append(Claim(instance, node.meta.name, node.meta.version))
            victims += there
        first = held[0][1]
        return Preemption(tuple(claims), tuple(victims), first.reason, first.message, self._clock.now())

    def _withdraw(self, key: Key) -> None:
        """Free the held room of an instance and retry it, with all members of its gang."""
        attempt = self._queue.attempt(key)
        if attempt is None:
            return
        self._view.nominate(attempt, "")
        member = attempt.request.member
        for each in self._queue.fellows(member.gang) if member is not None else [attempt]:
            self._queue.wake(each.request.key, now=self._clock.monotonic())
        self._work.wake.set()


def _takes_room(change: Change) -> bool:
    return isinstance(change.after, Instance) and placement_state(change.after) is PlacementState.PLACED
