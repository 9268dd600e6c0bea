"""The scheduling queue: who is next, who pauses after a failure, who waits for the cluster to change."""

import heapq
from collections.abc import Hashable, Set
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mandor.lib.backoff import Backoff
from mandor.model.meta import Key
from mandor.placement.framework.ask import Ask
from mandor.placement.framework.points import Happening, QueueSortPlugin

FLUSH_SECONDS = 300.0
"""Whoever has waited so long for a change is tried again without one."""
PAUSE = Backoff(first_seconds=1.0, most_seconds=10.0)


class Place(Enum):
    ACTIVE = "active"
    BACKING_OFF = "backing off"
    UNSCHEDULABLE = "unschedulable"
    NOWHERE = "nowhere"
    """Taken out, for a cycle."""


@dataclass(slots=True, eq=False)
class Entry:
    ask: Ask
    uid: str
    queued_at: float
    """Wall time: how old it is."""
    attempts: int = 0
    failed_at: float = 0.0
    retry_on: frozenset[Happening] = frozenset()
    place: Place = Place.NOWHERE
    ticket: int = 0
    """Marks its one valid place in a heap: what is left of earlier ones is skipped."""


_Seat = tuple[Any, int, Entry]
"""Rank, ticket, entry: tickets differ, so that entries are never compared."""


class SchedulingQueue:
    """Time is passed in (`now`: monotonic seconds), so that nothing here waits."""

    def __init__(self, sort: QueueSortPlugin, *, pause: Backoff = PAUSE, flush_seconds: float = FLUSH_SECONDS) -> None:
        self._sort = sort
        self._pause = pause
        self._flush_seconds = flush_seconds
        self._entries: dict[Key, Entry] = {}
        self._active: list[_Seat] = []
        self._backing_off: list[_Seat] = []
        self._unschedulable: dict[Key, Entry] = {}
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._entries)

    def place(self, key: Key) -> Place | None:
        """Where it is; None: not in the queue."""
        entry = self._entries.get(key)
        return entry.place if entry else None

    def add(self, ask: Ask, uid: str, queued_at: float) -> None:
        """A new one is active; one that is known keeps its place."""
        known = self._entries.get(ask.key)
        if known is not None and known.uid == uid:
            known.ask = ask
            return
        self.remove(ask.key)
        entry = Entry(ask, uid, queued_at)
        self._entries[ask.key] = entry
        self._activate(entry)

    def remove(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            entry.place, entry.ticket = Place.NOWHERE, 0
            self._unschedulable.pop(key, None)

    def pop(self) -> Entry | None:
        """The next one; it is out of the queue until it is put back."""
        while self._active:
            _, ticket, entry = heapq.heappop(self._active)
            if entry.ticket == ticket:
                self.remove(entry.ask.key)
                return entry
        return None

    def put_back(self, entry: Entry, *, now: float, retry_on: frozenset[Happening]) -> None:
        """Nothing fits: wait until something happens that can change that."""
        entry.attempts += 1
        entry.failed_at, entry.retry_on, entry.place = now, retry_on, Place.UNSCHEDULABLE
        self._entries[entry.ask.key] = entry
        self._unschedulable[entry.ask.key] = entry

    def back_off(self, entry: Entry, *, now: float) -> None:
        """Something went wrong: try again after a pause that grows."""
        entry.attempts += 1
        entry.failed_at = now
        self._entries[entry.ask.key] = entry
        self._rest(entry)

    def retry(self, entry: Entry) -> None:
        """Try again at once."""
        entry.attempts += 1
        self._entries[entry.ask.key] = entry
        self._activate(entry)

    def happened(self, happenings: Set[Happening], *, now: float) -> None:
        """Those whose refusal this can change are tried again, after their pause."""
        if not happenings:
            return
        woken = [entry for entry in self._unschedulable.values() if not entry.retry_on.isdisjoint(happenings)]
        for entry in woken:
            self._wake(entry, now)

    def flush(self, *, now: float) -> None:
        """Those whose pause is over are active again, and those who have waited too long for a change."""
        while self._backing_off and self._backing_off[0][0] <= now:
            _, ticket, entry = heapq.heappop(self._backing_off)
            if entry.ticket == ticket:
                self._activate(entry)
        # The longest waiting stand first.
        while self._unschedulable:
            entry = next(iter(self._unschedulable.values()))
            if now - entry.failed_at < self._flush_seconds:
                break
            self._wake(entry, now)

    def next_at(self) -> float | None:
        """When `flush` next has something to do; `None`: when nothing happens, never."""
        while self._backing_off and self._backing_off[0][2].ticket != self._backing_off[0][1]:
            heapq.heappop(self._backing_off)
        times: list[float] = [self._backing_off[0][0]] if self._backing_off else []
        if self._unschedulable:
            times.append(next(iter(self._unschedulable.values())).failed_at + self._flush_seconds)
        return min(times, default=None)

    def _wake(self, entry: Entry, now: float) -> None:
        del self._unschedulable[entry.ask.key]
        if self._rested_at(entry) <= now:
            self._activate(entry)
        else:
            self._rest(entry)

    def _rested_at(self, entry: Entry) -> float:
        return entry.failed_at + self._pause.pause(entry.attempts)

    def _activate(self, entry: Entry) -> None:
        entry.place = Place.ACTIVE
        rank: Hashable = self._sort.sort_key(entry.ask, entry.queued_at)
        heapq.heappush(self._active, self._seat(entry, rank))

    def _rest(self, entry: Entry) -> None:
        entry.place = Place.BACKING_OFF
        heapq.heappush(self._backing_off, self._seat(entry, self._rested_at(entry)))

    def _seat(self, entry: Entry, rank: object) -> _Seat:
        self._tickets += 1
        entry.ticket = self._tickets
        return rank, self._tickets, entry
