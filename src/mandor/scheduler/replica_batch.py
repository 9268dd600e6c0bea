"""Replica batches: equal instances that follow each other in the queue are decided in one step.

The result is the one of single decisions. A burst usually consists of thousands of replicas of one group; between two
of them only the free resources of one node change, and the effect of that on the scores is computed without plugins.
"""

from collections.abc import Callable
from time import perf_counter

from mandor.model.instance import Instance
from mandor.placement.fast import FAST
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.decision_log import DecisionLog
from mandor.scheduler.metrics import SchedulerMetrics
from mandor.scheduler.queue import SchedulingQueue
from mandor.scheduler.view import View
from mandor.scheduler.watchdog import SAMPLED, Watchdog

Timed = Callable[[float], None]
"""Called with the seconds that a decision took."""


class ReplicaBatch:
    """Takes the replicas of an instance that has just been decided out of the queue and assigns their nodes."""

    def __init__(
        self,
        view: View,
        queue: SchedulingQueue,
        decision_log: DecisionLog,
        metrics: SchedulerMetrics,
        watchdog: Watchdog,
    ) -> None:
        self._view, self._queue = view, queue
        self._log, self._metrics, self._watchdog = decision_log, metrics, watchdog

    def follow(
        self, first: PlacementRequest, profile: Profile, most: int, timed: Timed | None = None
    ) -> tuple[list[Attempt], list[Attempt]]:
        """Decide the replicas of `first` at the head of the queue, at most `most` of them.

        Return the attempts with a node, and those without, which are out of the queue. `timed`: called for each.
        """
        if most < 1 or not self._possible(first, profile):
            return [], []
        found: list[Instance] = []

        def is_replica(attempt: Attempt) -> bool:
            instance = self._replica(first, attempt, profile)
            if instance is not None:
                found.append(instance)
            return instance is not None

        attempts = self._queue.pop_while(is_replica, most)
        if not attempts:
            return [], []
        began = perf_counter()
        slots = FAST.replicas(profile, first, self._view.table.snapshot(), len(attempts), self._watchdog)
        self._count(profile, len(slots), (perf_counter() - began) / len(attempts), timed)
        placed = attempts[: len(slots)]
        self._view.assign_all(placed, found[: len(slots)], slots)
        return placed, attempts[len(slots) :]

    def _possible(self, request: PlacementRequest, profile: Profile) -> bool:
        """Return whether nothing but free resources matters, and no plugin or log has to see each decision."""
        table = self._view.table
        return (
            profile.plain
            and not profile.consults
            and request.member is None
            and request.shape.takes_room_alone(request.identity)
            and self._log.full
            and table.allocation_state.lowest_held() is None
            and FAST.foresees(profile, request, table.snapshot())
        )

    def _replica(self, first: PlacementRequest, attempt: Attempt, profile: Profile) -> Instance | None:
        """Return the instance if its request equals `first` but for the name, and it has not changed in the store."""
        request = attempt.request
        same = (
            request.shape is first.shape
            and request.identity is first.identity
            and request.priority == first.priority
            and request.profile == first.profile
            and request.avoid == first.avoid
            and request.pin == first.pin
            and request.key.namespace == first.key.namespace
        )
        fresh = not attempt.failures and attempt.consulted is None and request.member is None
        given_up = request.dropped or request.lenient or first.dropped or first.lenient
        if not same or not fresh or given_up or not profile.batches(request):
            return None
        return self._view.unassigned(attempt)

    def _count(self, profile: Profile, placed: int, seconds: float, timed: Timed | None) -> None:
        self._metrics.attempts["placed", profile.name] += placed
        for _ in range(placed // SAMPLED):
            self._metrics.decisions.add(seconds)
        if timed is not None:
            for _ in range(placed):
                timed(seconds)
