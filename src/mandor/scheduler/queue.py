"""The scheduling queue: attempts that are active, pausing after a failure, or waiting for a cluster event."""

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from typing import Any, Protocol, TypeVar

from mandor.lib.delay import Delay
from mandor.lib.line import Line
from mandor.lib.steps import WRITTEN, Steps, pieces
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.placement.framework.incremental import IncrementalFilter
from mandor.placement.framework.points import (
    ClusterChange,
    ClusterEvent,
    Hint,
    Plugin,
    PreEnqueuePlugin,
    QueueSortPlugin,
)
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault, blamed
from mandor.scheduler.attempt import Attempt, AttemptState

T = TypeVar("T")

FLUSH_SECONDS = 300.0
"""Seconds after which an unschedulable attempt is retried without an event."""
PAUSE = Delay(first_seconds=1.0, most_seconds=10.0)


WOKEN = 100
"""Waiting attempts checked per step after an event."""
FLUSHED_MOST = 500
"""Attempts activated per `flush`."""
CLOSELY_MOST = 64
"""Changes up to which each is checked for a node that is ruled out."""

Gang = tuple[str, str, str]
# Python 3.11 calls a function for each access to an enum member.
_ACTIVE, _OUT = AttemptState.ACTIVE, AttemptState.OUT
_WAITING = frozenset({AttemptState.UNSCHEDULABLE, AttemptState.GATED})
_PAUSABLE = frozenset({AttemptState.UNSCHEDULABLE, AttemptState.BACKING_OFF})
_FREE = frozenset({AttemptState.ACTIVE, AttemptState.BACKING_OFF, AttemptState.UNSCHEDULABLE, AttemptState.PARKED})
_Item = tuple[Any, int, Attempt]
"""Sort key, ticket, attempt; tickets are unique, so that attempts are never compared."""


class PluginCaller(Protocol):
    """Calls a plugin and raises `PluginFault` for any error."""

    def __call__(self, plugin: Plugin, work: Callable[..., T], *given: object) -> T: ...


def call_unwatched(plugin: Plugin, work: Callable[..., T], *given: object) -> T:
    with blamed(plugin):
        return work(*given)


Gates = Callable[[PlacementRequest], Iterable[PreEnqueuePlugin]]
"""Returns the PreEnqueue plugins of a request's profile."""
Outright = Callable[[PlacementRequest], Sequence[IncrementalFilter]]
"""Returns the Filter plugins of a request's profile that can rule a node out."""


class SchedulingQueue:
    """Attempts by state. Time is a parameter (`now`: monotonic seconds): nothing here waits.

    `gated` is called with an attempt and the reason why a PreEnqueue plugin keeps it out, or the fault of a plugin.
    """

    def __init__(
        self,
        sort: QueueSortPlugin,
        *,
        pause: Delay = PAUSE,
        flush_seconds: float = FLUSH_SECONDS,
        gates: Gates = lambda request: (),
        outright: Outright = lambda request: (),
        call: PluginCaller = call_unwatched,
        gated: Callable[[Attempt, str | PluginFault], None] = lambda attempt, why: None,
    ) -> None:
        self._sort = sort
        self._gates = gates
        self._outright = outright
        self._call = call
        self._report = gated
        self._gated: dict[Key, Attempt] = {}
        self._pause = pause
        self._flush_seconds = flush_seconds
        self._by_key: dict[Key, Attempt] = {}
        self._active: Line[_Item] = Line()
        self._backing_off: list[_Item] = []
        self._unschedulable: dict[Key, Attempt] = {}
        self._alarms: list[_Item] = []
        """Unschedulable attempts with a time limit."""
        self._registered: frozenset[ClusterEvent] = frozenset()
        """Superset of the events that the waiting attempts are registered for."""
        self._gangs: dict[Gang, dict[Key, Attempt]] = {}
        self._tickets = 0
        self._first = 0
        """The last ticket given by `put_first`: negative, so that such attempts precede others with the same key."""
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._by_key)

    def lengths(self) -> dict[AttemptState, int]:
        """Return the number of attempts by state, including zeros for the four main states."""
        found = dict.fromkeys(
            (AttemptState.ACTIVE, AttemptState.BACKING_OFF, AttemptState.UNSCHEDULABLE, AttemptState.GATED), 0
        )
        found |= Counter(each.state for each in self._by_key.values())
        found[AttemptState.GATED] = len(self._gated)
        return found

    @property
    def ready(self) -> bool:
        """Return whether an attempt is active."""
        return bool(self._active)

    @property
    def waiting(self) -> bool:
        """Return whether an attempt waits for an event."""
        return bool(self._unschedulable or self._gated)

    def awaits(self, events: Set[ClusterEvent]) -> bool:
        """Return whether an attempt may wait for one of these events."""
        return self.waiting and not self._registered.isdisjoint(events)

    def state(self, key: Key) -> AttemptState | None:
        """Return the state of an instance's attempt; None: not in the queue."""
        attempt = self._by_key.get(key)
        return attempt.state if attempt else None

    def add(self, request: PlacementRequest, uid: str, queued_at: float) -> None:
        """Add an instance, or update the request of one that is in the queue already."""
        known = self._by_key.get(request.key)
        if known is not None:
            if known.uid == uid:
                self._change(known, request)
                return
            self.remove(request.key)
        attempt = Attempt(request, uid, queued_at)
        self._keep(attempt)
        self._admit(attempt)

    def _change(self, attempt: Attempt, request: PlacementRequest) -> None:
        changed, moved = attempt.request != request, attempt.request.member != request.member
        if moved:
            self._leave_gang(attempt)
        attempt.request = request
        if moved:
            self._keep(attempt)
        if (changed and attempt.state is AttemptState.GATED) or (moved and attempt.state is AttemptState.PARKED):
            self._admit(attempt)

    def remove(self, key: Key) -> None:
        attempt = self._take(key)
        if attempt is not None and attempt.request.member is not None:
            self._unpark_one(attempt.request.member.gang)

    def _keep(self, attempt: Attempt) -> None:
        self._by_key[attempt.request.key] = attempt
        if attempt.request.member is not None:
            self._gangs.setdefault(attempt.request.member.gang, {})[attempt.request.key] = attempt

    def _take(self, key: Key) -> Attempt | None:
        attempt = self._by_key.pop(key, None)
        if attempt is not None:
            attempt.state, attempt.ticket = _OUT, 0
            self._unschedulable.pop(key, None)
            self._gated.pop(key, None)
            self._leave_gang(attempt)
        return attempt

    def _leave_gang(self, attempt: Attempt) -> None:
        if attempt.request.member is not None:
            gang = self._gangs[attempt.request.member.gang]
            del gang[attempt.request.key]
            if not gang:
                del self._gangs[attempt.request.member.gang]

    # Gangs.

    def fellows(self, gang: Gang) -> list[Attempt]:
        """Return the attempts of all members of a gang that are in the queue, in any state."""
        return list(self._gangs.get(gang, {}).values())

    def gather(self, attempt: Attempt) -> list[Attempt]:
        """Move an attempt and all members of its gang that can be decided to DECIDING; return them.

        Each stays in that state until `drop_held` takes it out.
        """
        assert attempt.request.member is not None
        self._keep(attempt)
        found = [attempt, *(each for each in self.fellows(attempt.request.member.gang) if each.state in _FREE)]
        for each in found:
            self._unschedulable.pop(each.request.key, None)
            each.state, each.ticket = AttemptState.DECIDING, 0
        return found

    def park(self, attempt: Attempt) -> None:
        """Keep an attempt while another member is in the queue for the gang; `gather` takes both."""
        attempt.state, attempt.ticket = AttemptState.PARKED, 0
        self._keep(attempt)

    def unpark(self, gang: Gang) -> None:
        """Activate the parked members of a gang, to be decided one by one."""
        for each in self.fellows(gang):
            if each.state is AttemptState.PARKED:
                self._admit(each)

    def _unpark_one(self, gang: Gang) -> None:
        """Activate one member if all that are left are parked."""
        left = self.fellows(gang)
        if left and all(each.state is AttemptState.PARKED for each in left):
            self._admit(left[0])

    def pop(self) -> Attempt | None:
        """Take the next active attempt out of the queue; None: there is none."""
        while self._active:
            try:
                _, ticket, attempt = self._active.pop()
            except Exception as error:
                self._no_order(error)
                return None
            if attempt.ticket == ticket:
                self._leave(attempt)
                return attempt
        return None

    def _leave(self, attempt: Attempt) -> None:
        del self._by_key[attempt.request.key]
        attempt.state, attempt.ticket = _OUT, 0
        if attempt.request.member is not None:
            self._leave_gang(attempt)

    def pop_while(self, wanted: Callable[[Attempt], bool], most: int) -> list[Attempt]:
        """Take attempts out as `pop` does, as long as the next one is wanted."""
        found: list[Attempt] = []
        while len(found) < most and (attempt := self._next()) is not None and wanted(attempt):
            self._active.pop()
            self._leave(attempt)
            found.append(attempt)
        return found

    def _next(self) -> Attempt | None:
        """Return the next active attempt; None: there is none, or the sort keys do not compare."""
        active = self._active
        try:
            while (item := active.first()) is not None:
                _, ticket, attempt = item
                if attempt.ticket == ticket:
                    return attempt
                active.pop()
        except Exception:
            return None
        return None

    def hold(self, attempt: Attempt) -> None:
        """Keep an attempt in state CONSULTING until `release`."""
        attempt.state = AttemptState.CONSULTING
        self._keep(attempt)

    def decide_on(self, attempt: Attempt) -> None:
        """Keep an attempt in state DECIDING until `drop_held`."""
        attempt.state, attempt.ticket = AttemptState.DECIDING, 0
        self._keep(attempt)

    def put_first(self, attempts: Sequence[Attempt]) -> None:
        """Return attempts that were taken out and not decided; they are next again, in their order."""
        for attempt in reversed(attempts):
            self._keep(attempt)
            self._first -= 1
            self._activate(attempt, self._first)

    def release(self, attempt: Attempt, consulted: Mapping[str, object]) -> None:
        """Activate an attempt after its consultation, unless it has left the queue."""
        if self._by_key.get(attempt.request.key) is attempt:
            attempt.consulted = consulted
            self._activate(attempt)

    def drop_held(self, attempt: Attempt) -> bool:
        """Take out an attempt in state CONSULTING or DECIDING; return False if it has left the queue."""
        if self._by_key.get(attempt.request.key) is not attempt:
            return False
        self._take(attempt.request.key)
        return True

    def attempt(self, key: Key) -> Attempt | None:
        return self._by_key.get(key)

    def wake(self, key: Key, *, now: float) -> None:
        """Retry an unschedulable attempt without an event."""
        if key in self._unschedulable:
            self._wake(self._unschedulable[key], now)

    def activate(self, key: Key) -> None:
        """Retry an unschedulable or pausing attempt now, without the rest of its pause."""
        attempt = self._by_key.get(key)
        if attempt is not None and attempt.state in _PAUSABLE:
            self._unschedulable.pop(key, None)
            self._admit(attempt)

    def put_back(
        self,
        attempt: Attempt,
        *,
        now: float,
        retry_on: frozenset[ClusterEvent],
        blamed: tuple[Plugin, ...] = (),
        by_node: bool = False,
        wake_at: float | None = None,
    ) -> None:
        """Make an attempt UNSCHEDULABLE until an event in `retry_on`, or until `wake_at`."""
        attempt.wake_at = wake_at
        if wake_at is not None:
            self._tickets += 1
            heapq.heappush(self._alarms, (wake_at, self._tickets, attempt))
        attempt.failures += 1
        attempt.blamed, attempt.by_node = blamed, by_node
        attempt.failed_at, attempt.retry_on, attempt.state = now, retry_on, AttemptState.UNSCHEDULABLE
        self._keep(attempt)
        self._register(retry_on)
        self._unschedulable[attempt.request.key] = attempt

    def _register(self, retry_on: frozenset[ClusterEvent]) -> None:
        """Register the events of one more waiting attempt."""
        self._registered = self._registered | retry_on if self.waiting else retry_on

    def back_off(self, attempt: Attempt, *, now: float) -> None:
        """Retry after a pause that grows with each failure."""
        attempt.failures += 1
        attempt.failed_at = now
        self._keep(attempt)
        self._pause_attempt(attempt)

    def retry(self, attempt: Attempt) -> None:
        """Retry now."""
        attempt.failures += 1
        self._keep(attempt)
        self._admit(attempt)

    def wake_on(self, events: Set[ClusterEvent], *, now: float, details: Sequence[ClusterChange] = ()) -> Steps[None]:
        """Retry the attempts whose refusal these events can change, after their pause; in steps, as many may wait.

        `details`: the single changes; without them plugins are not asked for hints.
        """
        if not self.awaits(events):
            return
        self._now = now
        hints = 1 + len(details)
        for piece in pieces((*self._unschedulable.values(), *self._gated.values()), WOKEN):
            for attempt in piece:
                if attempt.state in _WAITING and self._worthwhile(attempt, events, details):
                    if attempt.state is AttemptState.GATED:
                        self._admit(attempt)
                    else:
                        self._wake(attempt, now)
            yield hints * WRITTEN * len(piece)

    def _worthwhile(self, attempt: Attempt, events: Set[ClusterEvent], details: Sequence[ClusterChange]) -> bool:
        if attempt.retry_on.isdisjoint(events):
            return False
        if not details:
            return True
        outright = self._outright(attempt.request) if attempt.by_node and len(details) <= CLOSELY_MOST else ()
        if not outright and all(type(plugin).hint is Plugin.hint for plugin in attempt.blamed):
            return True
        concerning = (each for each in details if each.event in attempt.retry_on)
        return any(not self._ruled_out(attempt, each, outright) and self._hinted(attempt, each) for each in concerning)

    def _ruled_out(self, attempt: Attempt, change: ClusterChange, outright: Sequence[IncrementalFilter]) -> bool:
        """Return whether a change concerns a node that is ruled out for every form, by the same plugin as before it.

        A new node is never ruled out here.
        """
        node, before = change.node, change.before
        if node is None or not outright or change.event is ClusterEvent.NODE_ADDED:
            return False
        for form in attempt.request.forms:
            why = self._ruling_plugin(form, node, outright)
            if why is None or (before is not None and self._ruling_plugin(form, before, outright) is not why):
                return False
        return True

    def _ruling_plugin(
        self, request: PlacementRequest, node: Node, outright: Sequence[IncrementalFilter]
    ) -> IncrementalFilter | None:
        try:
            return next((each for each in outright if self._call(each, each.rules_out, request, node)), None)
        except PluginFault:
            return None

    def _hinted(self, attempt: Attempt, change: ClusterChange) -> bool:
        """Return whether a refusing plugin hints to retry; True if none of them has registered for the event."""
        asked = [plugin for plugin in attempt.blamed if change.event in plugin.retry_on]
        for form in attempt.request.forms:
            for plugin in asked:
                try:
                    hint = self._call(plugin, plugin.hint, form, change)
                except PluginFault:
                    return True  # An extra try does no harm.
                if hint is not Hint.SKIP:
                    return True
        return not asked

    def use(self, sort: QueueSortPlugin, *, now: float, pause: Delay | None = None) -> None:
        """Use other plugins: sort the active attempts again and retry all that wait.

        `pause`: the new back-off, which also applies to current pauses.
        """
        self._sort, self._now = sort, now
        if pause is not None and pause != self._pause:
            self._pause = pause
            self._backing_off.clear()
            for attempt in self._by_key.values():
                if attempt.state is AttemptState.BACKING_OFF:
                    self._pause_attempt(attempt)
        self._active.clear()
        for attempt in list(self._by_key.values()):
            attempt.blamed, attempt.by_node = (), False
            if attempt.state in {AttemptState.ACTIVE, AttemptState.GATED, AttemptState.PARKED}:
                self._admit(attempt)
            elif attempt.state is AttemptState.UNSCHEDULABLE:
                self._wake(attempt, now)

    def flush(self, *, now: float) -> None:
        """Activate attempts whose pause or time limit is over, at most `FLUSHED_MOST`; `next_at` includes the rest."""
        self._now = now
        left = FLUSHED_MOST
        while left and self._backing_off and self._backing_off[0][0] <= now:
            left -= 1
            _, ticket, attempt = heapq.heappop(self._backing_off)
            if attempt.ticket == ticket:
                self._admit(attempt)
        while left and self._alarms and self._alarms[0][0] <= now:
            left -= 1
            at, _, attempt = heapq.heappop(self._alarms)
            if _rings(attempt, at):
                self._wake(attempt, now)
        # Ordered by the time of their failure.
        while left and self._unschedulable:
            left -= 1
            attempt = next(iter(self._unschedulable.values()))
            if now - attempt.failed_at < self._flush_seconds:
                break
            self._wake(attempt, now)

    def next_at(self) -> float | None:
        """Return when `flush` next has something to do; None: never without an event."""
        while self._backing_off and self._backing_off[0][2].ticket != self._backing_off[0][1]:
            heapq.heappop(self._backing_off)
        while self._alarms and not _rings(self._alarms[0][2], self._alarms[0][0]):
            heapq.heappop(self._alarms)
        times: list[float] = [each[0][0] for each in (self._backing_off, self._alarms) if each]
        if self._unschedulable:
            times.append(next(iter(self._unschedulable.values())).failed_at + self._flush_seconds)
        return min(times, default=None)

    def _wake(self, attempt: Attempt, now: float) -> None:
        del self._unschedulable[attempt.request.key]
        if self._paused_until(attempt) <= now:
            self._admit(attempt)
        else:
            self._pause_attempt(attempt)

    def _paused_until(self, attempt: Attempt) -> float:
        return attempt.failed_at + self._pause.after(attempt.failures)

    def _admit(self, attempt: Attempt) -> None:
        """Activate an attempt unless a PreEnqueue plugin keeps it out."""
        if self._gated:
            self._gated.pop(attempt.request.key, None)
        for plugin in self._gates(attempt.request):
            try:
                why = self._call(plugin, gate_of, plugin, attempt.request)
            except PluginFault as fault:
                self._fail(attempt, fault)
                return
            if why is not None:
                attempt.state, attempt.ticket = AttemptState.GATED, 0
                attempt.retry_on, attempt.blamed = plugin.retry_on, (plugin,)
                self._register(plugin.retry_on)
                self._gated[attempt.request.key] = attempt
                self._report(attempt, why)
                return
        self._activate(attempt)

    def _activate(self, attempt: Attempt, ticket: int | None = None) -> None:
        attempt.state = _ACTIVE
        try:
            rank: Hashable = self._call(self._sort, self._sort.sort_key, attempt.request, attempt.queued_at)
        except PluginFault as fault:
            self._fail(attempt, fault)
            return
        try:
            self._active.push(self._item(attempt, rank, ticket))
        except Exception as error:
            self._no_order(error)

    def _no_order(self, error: Exception) -> None:
        """Fail all active attempts: keys that do not compare leave the heap without order."""
        self._active.clear()
        fault = PluginFault(self._sort.name, f"gives keys that do not compare: {error}")
        for attempt in [attempt for attempt in self._by_key.values() if attempt.state is AttemptState.ACTIVE]:
            self._fail(attempt, fault)

    def _fail(self, attempt: Attempt, fault: PluginFault) -> None:
        attempt.failures += 1
        attempt.failed_at = self._now
        self._pause_attempt(attempt)
        self._report(attempt, fault)

    def _pause_attempt(self, attempt: Attempt) -> None:
        attempt.state = AttemptState.BACKING_OFF
        heapq.heappush(self._backing_off, self._item(attempt, self._paused_until(attempt)))

    def _item(self, attempt: Attempt, rank: object, ticket: int | None = None) -> _Item:
        if ticket is None:
            ticket = self._tickets = self._tickets + 1
        attempt.ticket = ticket
        return rank, ticket, attempt


def _rings(attempt: Attempt, at: float) -> bool:
    return attempt.state is AttemptState.UNSCHEDULABLE and attempt.wake_at == at


def gate_of(plugin: PreEnqueuePlugin, request: PlacementRequest) -> str | None:
    why = plugin.pre_enqueue(request)
    if why is not None and not isinstance(why, str):
        raise TypeError(f"pre_enqueue answered {why!r}, not None or a text")
    return why
