"""The scheduling queue: who is next, who pauses after a failure, who waits for the cluster to change."""

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar

from mandor.lib.backoff import Backoff
from mandor.lib.line import Line
from mandor.lib.steps import WRITTEN, Steps, pieces
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.placement.framework.points import (
    ClusterChange,
    ClusterEvent,
    FilterPlugin,
    Hint,
    Plugin,
    PreEnqueuePlugin,
    QueueSortPlugin,
)
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault, blamed

T = TypeVar("T")

FLUSH_SECONDS = 300.0
"""Whoever has waited so long for a change is tried again without one."""
PAUSE = Backoff(first_seconds=1.0, most_seconds=10.0)


class Place(Enum):
    ACTIVE = "active"
    BACKING_OFF = "backing off"
    UNSCHEDULABLE = "unschedulable"
    GATED = "gated"
    """Not in the queue: a PreEnqueue plugin keeps it out."""
    ASKED_ABOUT = "asked about"
    """Somebody elsewhere is asked before it is decided."""
    PARKED = "parked"
    """Another of its gang waits for all of them."""
    DECIDED_ON = "decided on"
    """In a cycle that is not over."""
    NOWHERE = "nowhere"
    """Taken out, for a cycle."""


@dataclass(slots=True, eq=False)
class Entry:
    request: PlacementRequest
    uid: str
    queued_at: float
    """Wall time: how old it is."""
    attempts: int = 0
    failed_at: float = 0.0
    retry_on: frozenset[ClusterEvent] = frozenset()
    blamed: tuple[Plugin, ...] = ()
    """Who refused it last."""
    by_node: bool = False
    """They judge each node by itself (see `Decision.by_node`)."""
    patient_from: float | None = None
    """Monotonic: since when it waits for room that others are about to free."""
    wake_at: float | None = None
    """Monotonic: then it is tried again, whatever happens."""
    consulted: Mapping[str, object] | None = None
    """What others answered, for its next cycle."""
    place: Place = Place.NOWHERE
    ticket: int = 0
    """Marks its one valid place in a heap: what is left of earlier ones is skipped."""


WOKEN = 100
"""So many of those who wait are looked at in one go."""
FLUSHED_MOST = 500
CLOSELY_MOST = 64
"""When more happens at once, it is not looked at for each where that was."""

Gang = tuple[str, str, str]
# Python 3.11 looks a member of an enum up in a function of its own each time.
_ACTIVE, _NOWHERE = Place.ACTIVE, Place.NOWHERE
_WAITING = frozenset({Place.UNSCHEDULABLE, Place.GATED})
_FREE = frozenset({Place.ACTIVE, Place.BACKING_OFF, Place.UNSCHEDULABLE, Place.PARKED})
_Seat = tuple[Any, int, Entry]
"""Rank, ticket, entry: tickets differ, so that entries are never compared."""


class Caller(Protocol):
    """How plugins are called: a `PluginFault` for whatever goes wrong."""

    def __call__(self, plugin: Plugin, work: Callable[..., T], *given: object) -> T: ...


def plainly(plugin: Plugin, work: Callable[..., T], *given: object) -> T:
    with blamed(plugin):
        return work(*given)


Gates = Callable[[PlacementRequest], Iterable[PreEnqueuePlugin]]
"""The PreEnqueue plugins of its profile."""
Outright = Callable[[PlacementRequest], Sequence[FilterPlugin]]
"""The Filter plugins of its profile that can rule a node out."""


class SchedulingQueue:
    """Time is passed in (`now`: monotonic seconds), so that nothing here waits.

    `told` hears why somebody is kept out (plugin, reason), or that a plugin went wrong (a `PluginFault`).
    """

    def __init__(
        self,
        sort: QueueSortPlugin,
        *,
        pause: Backoff = PAUSE,
        flush_seconds: float = FLUSH_SECONDS,
        gates: Gates = lambda request: (),
        outright: Outright = lambda request: (),
        call: Caller = plainly,
        told: Callable[[Entry, str | PluginFault], None] = lambda entry, why: None,
    ) -> None:
        self._sort = sort
        self._gates = gates
        self._outright = outright
        self._call = call
        self._told = told
        self._gated: dict[Key, Entry] = {}
        self._pause = pause
        self._flush_seconds = flush_seconds
        self._entries: dict[Key, Entry] = {}
        self._active: Line[_Seat] = Line()
        self._backing_off: list[_Seat] = []
        self._unschedulable: dict[Key, Entry] = {}
        self._alarms: list[_Seat] = []
        """Of those who wait for a change, the ones who do not wait for ever."""
        self._hopes: frozenset[ClusterEvent] = frozenset()
        """What those wait for who wait, and those who waited together with them."""
        self._gangs: dict[Gang, dict[Key, Entry]] = {}
        self._tickets = 0
        self._first = 0
        """The ticket of the last that was put before all others of its rank."""
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def lengths(self) -> dict[Place, int]:
        """How many are where; of the usual places, those where nobody is, too."""
        found = dict.fromkeys((Place.ACTIVE, Place.BACKING_OFF, Place.UNSCHEDULABLE, Place.GATED), 0)
        found |= Counter(each.place for each in self._entries.values())
        found[Place.GATED] = len(self._gated)
        return found

    @property
    def ready(self) -> bool:
        """Somebody may be decided about now."""
        return bool(self._active)

    @property
    def waiting(self) -> bool:
        """Somebody waits for something to happen."""
        return bool(self._unschedulable or self._gated)

    def hopes(self, events: Set[ClusterEvent]) -> bool:
        """Somebody may wait for one of these."""
        return self.waiting and not self._hopes.isdisjoint(events)

    def place(self, key: Key) -> Place | None:
        """Where it is; None: not in the queue."""
        entry = self._entries.get(key)
        return entry.place if entry else None

    def add(self, request: PlacementRequest, uid: str, queued_at: float) -> None:
        """A new one is active; one that is known keeps its place."""
        known = self._entries.get(request.key)
        if known is not None:
            if known.uid == uid:
                self._change(known, request)
                return
            self.remove(request.key)
        entry = Entry(request, uid, queued_at)
        self._keep(entry)
        self._let_in(entry)

    def _change(self, entry: Entry, request: PlacementRequest) -> None:
        changed, moved = entry.request != request, entry.request.member != request.member
        if moved:
            self._leave_gang(entry)
        entry.request = request
        if moved:
            self._keep(entry)
        if (changed and entry.place is Place.GATED) or (moved and entry.place is Place.PARKED):
            self._let_in(entry)

    def remove(self, key: Key) -> None:
        entry = self._take(key)
        if entry is not None and entry.request.member is not None:
            self._let_one_in(entry.request.member.gang)

    def _keep(self, entry: Entry) -> None:
        self._entries[entry.request.key] = entry
        if entry.request.member is not None:
            self._gangs.setdefault(entry.request.member.gang, {})[entry.request.key] = entry

    def _take(self, key: Key) -> Entry | None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            entry.place, entry.ticket = _NOWHERE, 0
            self._unschedulable.pop(key, None)
            self._gated.pop(key, None)
            self._leave_gang(entry)
        return entry

    def _leave_gang(self, entry: Entry) -> None:
        if entry.request.member is not None:
            gang = self._gangs[entry.request.member.gang]
            del gang[entry.request.key]
            if not gang:
                del self._gangs[entry.request.member.gang]

    # Gangs.

    def fellows(self, gang: Gang) -> list[Entry]:
        """All of a gang that are in the queue, wherever."""
        return list(self._gangs.get(gang, {}).values())

    def gather(self, entry: Entry) -> list[Entry]:
        """This one, which is out of the queue, and all of its gang that can be decided: they are in a cycle from now on
        until each is taken out (`drop_held`) and put back."""
        assert entry.request.member is not None
        self._keep(entry)
        found = [entry, *(each for each in self.fellows(entry.request.member.gang) if each.place in _FREE)]
        for each in found:
            self._unschedulable.pop(each.request.key, None)
            each.place, each.ticket = Place.DECIDED_ON, 0
        return found

    def park(self, entry: Entry) -> None:
        """Another one of its gang is in the queue; it is gathered together with that."""
        entry.place, entry.ticket = Place.PARKED, 0
        self._keep(entry)

    def unpark(self, gang: Gang) -> None:
        """Each goes its own way."""
        for each in self.fellows(gang):
            if each.place is Place.PARKED:
                self._let_in(each)

    def _let_one_in(self, gang: Gang) -> None:
        """Whoever spoke for the gang is gone: if only parked ones are left, one of them is next."""
        left = self.fellows(gang)
        if left and all(each.place is Place.PARKED for each in left):
            self._let_in(left[0])

    def pop(self) -> Entry | None:
        """The next one; it is out of the queue until it is put back."""
        while self._active:
            try:
                _, ticket, entry = self._active.pop()
            except Exception as error:
                self._no_order(error)
                return None
            if entry.ticket == ticket:
                self._leave(entry)
                return entry
        return None

    def _leave(self, entry: Entry) -> None:
        del self._entries[entry.request.key]
        entry.place, entry.ticket = _NOWHERE, 0
        if entry.request.member is not None:
            self._leave_gang(entry)

    def pop_while(self, wanted: Callable[[Entry], bool], most: int) -> list[Entry]:
        """As `pop`, as long as the next one is wanted."""
        found: list[Entry] = []
        while len(found) < most and (entry := self._next()) is not None and wanted(entry):
            self._active.pop()
            self._leave(entry)
            found.append(entry)
        return found

    def _next(self) -> Entry | None:
        """Who is next; None: nobody, or nobody can tell (as `pop` says)."""
        active = self._active
        try:
            while (seat := active.first()) is not None:
                _, ticket, entry = seat
                if entry.ticket == ticket:
                    return entry
                active.pop()
        except Exception:
            return None
        return None

    def hold(self, entry: Entry) -> None:
        """Somebody is asked about it first; `release` lets it go on."""
        entry.place = Place.ASKED_ABOUT
        self._keep(entry)

    def decide_on(self, entry: Entry) -> None:
        """It is in a cycle from now on, until it is taken out (`drop_held`) and put back."""
        entry.place, entry.ticket = Place.DECIDED_ON, 0
        self._keep(entry)

    def put_first(self, entries: Sequence[Entry]) -> None:
        """They were taken out, and nothing was decided about them: they are next again, in their order."""
        for entry in reversed(entries):
            self._keep(entry)
            self._first -= 1
            self._activate(entry, self._first)

    def release(self, entry: Entry, consulted: Mapping[str, object]) -> None:
        """With the answers, to its next cycle; unless it is gone, or another has taken its name."""
        if self._entries.get(entry.request.key) is entry:
            entry.consulted = consulted
            self._activate(entry)

    def drop_held(self, entry: Entry) -> bool:
        """Take it out again, to be put back otherwise. False: it is gone already."""
        if self._entries.get(entry.request.key) is not entry:
            return False
        self._take(entry.request.key)
        return True

    def entry(self, key: Key) -> Entry | None:
        return self._entries.get(key)

    def wake(self, key: Key, *, now: float) -> None:
        """Whoever waits for a change need not wait any longer."""
        if key in self._unschedulable:
            self._wake(self._unschedulable[key], now)

    def put_back(
        self,
        entry: Entry,
        *,
        now: float,
        retry_on: frozenset[ClusterEvent],
        blamed: tuple[Plugin, ...] = (),
        by_node: bool = False,
        wake_at: float | None = None,
    ) -> None:
        """Nothing fits: wait until something happens that can change that, or until `wake_at`."""
        entry.wake_at = wake_at
        if wake_at is not None:
            self._tickets += 1
            heapq.heappush(self._alarms, (wake_at, self._tickets, entry))
        entry.attempts += 1
        entry.blamed, entry.by_node = blamed, by_node
        entry.failed_at, entry.retry_on, entry.place = now, retry_on, Place.UNSCHEDULABLE
        self._keep(entry)
        self._hope(retry_on)
        self._unschedulable[entry.request.key] = entry

    def _hope(self, retry_on: frozenset[ClusterEvent]) -> None:
        """One more is about to wait."""
        self._hopes = self._hopes | retry_on if self.waiting else retry_on

    def back_off(self, entry: Entry, *, now: float) -> None:
        """Something went wrong: try again after a pause that grows."""
        entry.attempts += 1
        entry.failed_at = now
        self._keep(entry)
        self._rest(entry)

    def retry(self, entry: Entry) -> None:
        """Try again at once."""
        entry.attempts += 1
        self._keep(entry)
        self._let_in(entry)

    def happened(self, events: Set[ClusterEvent], *, now: float, details: Sequence[ClusterChange] = ()) -> Steps[None]:
        """Those whose refusal this can change are tried again, after their pause; in steps, for tens of thousands may
        wait.

        `details`: everything that happened, one by one; without them, nobody is asked for a hint.
        """
        if not self.hopes(events):
            return
        self._now = now
        hints = 1 + len(details)
        for piece in pieces((*self._unschedulable.values(), *self._gated.values()), WOKEN):
            for entry in piece:
                if entry.place in _WAITING and self._worthwhile(entry, events, details):
                    if entry.place is Place.GATED:
                        self._let_in(entry)
                    else:
                        self._wake(entry, now)
            yield hints * WRITTEN * len(piece)

    def _worthwhile(self, entry: Entry, events: Set[ClusterEvent], details: Sequence[ClusterChange]) -> bool:
        if entry.retry_on.isdisjoint(events):
            return False
        if not details:
            return True
        outright = self._outright(entry.request) if entry.by_node and len(details) <= CLOSELY_MOST else ()
        if not outright and all(type(plugin).hint is Plugin.hint for plugin in entry.blamed):
            return True
        concerning = (each for each in details if each.event in entry.retry_on)
        return any(not self._ruled_out(entry, each, outright) and self._hinted(entry, each) for each in concerning)

    def _ruled_out(self, entry: Entry, happened: ClusterChange, outright: Sequence[FilterPlugin]) -> bool:
        """It happened on a node that is out of the question, in every form, and for the same reason as before. (That
        there is a new node is told by a try.)"""
        node, before = happened.node, happened.before
        if node is None or not outright or happened.event is ClusterEvent.NODE_ADDED:
            return False
        for form in entry.request.forms:
            why = self._who_rules_out(form, node, outright)
            if why is None or (before is not None and self._who_rules_out(form, before, outright) is not why):
                return False
        return True

    def _who_rules_out(
        self, request: PlacementRequest, node: Node, outright: Sequence[FilterPlugin]
    ) -> FilterPlugin | None:
        try:
            return next((each for each in outright if self._call(each, each.rules_out, request, node)), None)
        except PluginFault:
            return None

    def _hinted(self, entry: Entry, happened: ClusterChange) -> bool:
        """One of those who refused it thinks so; when nobody of them has an opinion, yes."""
        asked = [plugin for plugin in entry.blamed if happened.event in plugin.retry_on]
        for form in entry.request.forms:
            for plugin in asked:
                try:
                    hint = self._call(plugin, plugin.hint, form, happened)
                except PluginFault:
                    return True  # One try too many does no harm.
                if hint is not Hint.SKIP:
                    return True
        return not asked

    def use(self, sort: QueueSortPlugin, *, now: float, pause: Backoff | None = None) -> None:
        """Other plugins decide from now on: the active are sorted anew, and all who wait are looked at again.

        `pause`: between the tries of one instance; those who pause already do so for as long as it says."""
        self._sort, self._now = sort, now
        if pause is not None and pause != self._pause:
            self._pause = pause
            self._backing_off.clear()
            for entry in self._entries.values():
                if entry.place is Place.BACKING_OFF:
                    self._rest(entry)
        self._active.clear()
        for entry in list(self._entries.values()):
            entry.blamed, entry.by_node = (), False
            if entry.place in {Place.ACTIVE, Place.GATED, Place.PARKED}:
                self._let_in(entry)
            elif entry.place is Place.UNSCHEDULABLE:
                self._wake(entry, now)

    def flush(self, *, now: float) -> None:
        """Those whose pause is over are active again, and those who have waited too long for a change; of very many
        some, and the others the next time, which `next_at` says is now."""
        self._now = now
        left = FLUSHED_MOST
        while left and self._backing_off and self._backing_off[0][0] <= now:
            left -= 1
            _, ticket, entry = heapq.heappop(self._backing_off)
            if entry.ticket == ticket:
                self._let_in(entry)
        while left and self._alarms and self._alarms[0][0] <= now:
            left -= 1
            at, _, entry = heapq.heappop(self._alarms)
            if _rings(entry, at):
                self._wake(entry, now)
        # The longest waiting stand first.
        while left and self._unschedulable:
            left -= 1
            entry = next(iter(self._unschedulable.values()))
            if now - entry.failed_at < self._flush_seconds:
                break
            self._wake(entry, now)

    def next_at(self) -> float | None:
        """When `flush` next has something to do; `None`: when nothing happens, never."""
        while self._backing_off and self._backing_off[0][2].ticket != self._backing_off[0][1]:
            heapq.heappop(self._backing_off)
        while self._alarms and not _rings(self._alarms[0][2], self._alarms[0][0]):
            heapq.heappop(self._alarms)
        times: list[float] = [each[0][0] for each in (self._backing_off, self._alarms) if each]
        if self._unschedulable:
            times.append(next(iter(self._unschedulable.values())).failed_at + self._flush_seconds)
        return min(times, default=None)

    def _wake(self, entry: Entry, now: float) -> None:
        del self._unschedulable[entry.request.key]
        if self._rested_at(entry) <= now:
            self._let_in(entry)
        else:
            self._rest(entry)

    def _rested_at(self, entry: Entry) -> float:
        return entry.failed_at + self._pause.pause(entry.attempts)

    def _let_in(self, entry: Entry) -> None:
        """Into the queue, unless a PreEnqueue plugin keeps it out."""
        if self._gated:
            self._gated.pop(entry.request.key, None)
        for plugin in self._gates(entry.request):
            try:
                why = self._call(plugin, gate_of, plugin, entry.request)
            except PluginFault as fault:
                self._fail(entry, fault)
                return
            if why is not None:
                entry.place, entry.ticket = Place.GATED, 0
                entry.retry_on, entry.blamed = plugin.retry_on, (plugin,)
                self._hope(plugin.retry_on)
                self._gated[entry.request.key] = entry
                self._told(entry, why)
                return
        self._activate(entry)

    def _activate(self, entry: Entry, ticket: int | None = None) -> None:
        entry.place = _ACTIVE
        try:
            rank: Hashable = self._call(self._sort, self._sort.sort_key, entry.request, entry.queued_at)
        except PluginFault as fault:
            self._fail(entry, fault)
            return
        try:
            self._active.push(self._seat(entry, rank, ticket))
        except Exception as error:
            self._no_order(error)

    def _no_order(self, error: Exception) -> None:
        """Keys that do not compare leave the heap in no order at all."""
        self._active.clear()
        fault = PluginFault(self._sort.name, f"gives keys that do not compare: {error}")
        for entry in [entry for entry in self._entries.values() if entry.place is Place.ACTIVE]:
            self._fail(entry, fault)

    def _fail(self, entry: Entry, fault: PluginFault) -> None:
        entry.attempts += 1
        entry.failed_at = self._now
        self._rest(entry)
        self._told(entry, fault)

    def _rest(self, entry: Entry) -> None:
        entry.place = Place.BACKING_OFF
        heapq.heappush(self._backing_off, self._seat(entry, self._rested_at(entry)))

    def _seat(self, entry: Entry, rank: object, ticket: int | None = None) -> _Seat:
        if ticket is None:
            ticket = self._tickets = self._tickets + 1
        entry.ticket = ticket
        return rank, ticket, entry


def _rings(entry: Entry, at: float) -> bool:
    return entry.place is Place.UNSCHEDULABLE and entry.wake_at == at


def gate_of(plugin: PreEnqueuePlugin, request: PlacementRequest) -> str | None:
    why = plugin.pre_enqueue(request)
    if why is not None and not isinstance(why, str):
        raise TypeError(f"pre_enqueue answered {why!r}, not None or a text")
    return why
