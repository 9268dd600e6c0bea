"""Puts attempts without a node back into the queue, and reports why they have none."""

import asyncio

from mandor.lib.clock import Clock
from mandor.placement.decision import Decision
from mandor.placement.framework.runtime import PluginFault
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.nominations import Nominations
from mandor.scheduler.queue import SchedulingQueue
from mandor.scheduler.status_writer import StatusWriter
from mandor.scheduler.tracing import Tracing

PLUGIN_FAULT = "PluginFault"
GATED = "Gated"


class Requeue:
    def __init__(
        self,
        queue: SchedulingQueue,
        nominations: Nominations,
        status: StatusWriter,
        clock: Clock,
        tracing: Tracing | None,
    ) -> None:
        self._queue = queue
        self._nominations = nominations
        self._status = status
        self._clock = clock
        self._tracing = tracing

    def unschedulable(self, attempt: Attempt, decision: Decision) -> None:
        """Wait until a cluster event can change the decision, or until its own time limit."""
        now = self._clock.monotonic()
        wake_at = None if decision.again is None else now + decision.again
        if self._tracing is not None:
            self._tracing.refused(attempt, decision.reason, decision.message)
        self._queue.put_back(
            attempt,
            now=now,
            retry_on=decision.retry_on,
            blamed=decision.blamed,
            by_node=decision.by_node,
            wake_at=wake_at,
        )
        if not self._nominations.hold((attempt, decision)):
            self._status.refused(attempt.key, attempt.uid, decision.reason, decision.message, decision.nominated)

    def after_fault(self, attempt: Attempt, message: str) -> None:
        """Retry after a pause, because a plugin failed."""
        if self._tracing is not None:
            self._tracing.refused(attempt, PLUGIN_FAULT, message)
        self._queue.back_off(attempt, now=self._clock.monotonic())
        self._status.refused(attempt.key, attempt.uid, PLUGIN_FAULT, message)


class GateReports:
    """Reports attempts that a PreEnqueue plugin keeps out of the queue, or whose queue plugins fail."""

    def __init__(self, status: StatusWriter, tracing: Tracing | None, wake: asyncio.Event) -> None:
        self._status = status
        self._tracing = tracing
        self._wake = wake

    def report(self, attempt: Attempt, why: str | PluginFault) -> None:
        reason = PLUGIN_FAULT if isinstance(why, PluginFault) else GATED
        if self._tracing is not None:
            self._tracing.refused(attempt, reason, str(why))
        self._status.refused(attempt.key, attempt.uid, reason, str(why))
        if isinstance(why, PluginFault):
            self._wake.set()  # The attempt is backing off, and the loop has to wait for the end of that.
