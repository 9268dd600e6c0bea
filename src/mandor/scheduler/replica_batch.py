"""Decides in one go about many that are alike and stand next to each other in the queue: as one by one, but sooner.

Thousands of copies of one group are the usual burst. What is between two decisions about one and the same question need
not be done for each of them: nobody has a say but the room on the nodes, and that is computed.
"""

from collections.abc import Callable
from time import perf_counter

from mandor.model.instance import Instance
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.score_row import foreseeable, next_slots
from mandor.scheduler.decision_log import DecisionLog
from mandor.scheduler.metrics import SchedulerMetrics
from mandor.scheduler.queue import Entry, SchedulingQueue
from mandor.scheduler.view import Promise, View
from mandor.scheduler.watchdog import SAMPLED, Watchdog

Told = Callable[[float], None]


class ReplicaBatch:
    def __init__(
        self, view: View, queue: SchedulingQueue, journal: DecisionLog, measures: SchedulerMetrics, watchdog: Watchdog
    ) -> None:
        self._view, self._queue = view, queue
        self._journal, self._measures, self._watchdog = journal, measures, watchdog

    def follow(
        self, first: PlacementRequest, profile: Profile, most: int, told: Told | None = None
    ) -> tuple[list[Promise], list[Entry]]:
        """Those of its like that are next, at most so many: what is promised to them, and who of them has found no
        node, and is out of the queue. `first` has just been decided on. `told`: what each took, in seconds."""
        if most < 1 or not self._possible(first, profile):
            return [], []
        found: list[Instance] = []

        def alike(entry: Entry) -> bool:
            instance = self._like(first, entry, profile)
            if instance is not None:
                found.append(instance)
            return instance is not None

        entries = self._queue.pop_while(alike, most)
        if not entries:
            return [], []
        began = perf_counter()
        slots = next_slots(profile, first, self._view.table.snapshot(), len(entries), self._watchdog)
        self._count(profile, len(slots), (perf_counter() - began) / len(entries), told)
        placed = len(slots)
        return self._view.promise_all(entries[:placed], found[:placed], slots), entries[placed:]

    def _possible(self, request: PlacementRequest, profile: Profile) -> bool:
        """Nothing happens between two decisions about it that would have to be done for each."""
        table = self._view.table
        return (
            profile.plain
            and not profile.consults
            and request.member is None
            and request.shape.takes_room_alone(request.identity)
            and self._journal.full
            and table.lodgings.lowest_held() is None
            and foreseeable(profile, request, table.snapshot())
        )

    def _like(self, first: PlacementRequest, entry: Entry, profile: Profile) -> Instance | None:
        """The instance, if nothing but its name distinguishes it; and if it is what it was when it was queued."""
        request = entry.request
        same = (
            request.shape is first.shape
            and request.identity is first.identity
            and request.priority == first.priority
            and request.profile == first.profile
            and request.avoid == first.avoid
            and request.pin == first.pin
            and request.key.namespace == first.key.namespace
        )
        fresh = not entry.attempts and entry.consulted is None and request.member is None
        given_up = request.dropped or request.lenient or first.dropped or first.lenient
        if not same or not fresh or given_up or not profile.batches(request):
            return None
        return self._view.waiting(entry)

    def _count(self, profile: Profile, placed: int, seconds: float, told: Told | None) -> None:
        self._measures.attempts["placed", profile.name] += placed
        for _ in range(placed // SAMPLED):
            self._measures.decisions.add(seconds)
        for _ in range(placed if told is not None else 0):
            told(seconds)  # type: ignore[misc]
