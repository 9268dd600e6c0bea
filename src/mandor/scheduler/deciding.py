"""Decides one attempt: in one turn, or in several where other instances have to be preempted."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

from mandor.lib.steps import TURN, Steps, at_once
from mandor.placement.cycle import begin
from mandor.placement.decision import Decision, broken_off
from mandor.placement.fast import FAST, FEW_NODES, FastDecider
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.watch import Overrun
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.decision_log import DecisionLog
from mandor.scheduler.metrics import SchedulerMetrics
from mandor.scheduler.nominations import Nominations
from mandor.scheduler.queue import SchedulingQueue
from mandor.scheduler.tracing import Tracing
from mandor.scheduler.view import View
from mandor.scheduler.watchdog import Watchdog

RESTARTS_MOST = 4
"""Starts of one decision, each after a change of the table; the last one runs to its end in one turn."""
T = TypeVar("T")


@dataclass(slots=True)
class DecisionInProgress:
    """A decision that continues in the next turn."""

    attempt: Attempt
    request: PlacementRequest
    profile: Profile
    nominated: str
    steps: Steps[Decision]
    version: int
    """Version of the table at the start."""
    seconds: float
    """Time spent so far."""
    sampled: bool
    """The time goes into the metrics."""


class Deciding:
    """Makes decisions, caches refusals of a class of instances, and records what was decided."""

    def __init__(
        self,
        view: View,
        queue: SchedulingQueue,
        watchdog: Watchdog,
        metrics: SchedulerMetrics,
        nominations: Nominations,
        decision_log: DecisionLog,
        tracing: Tracing | None,
    ) -> None:
        self._view, self._queue = view, queue
        self._watchdog, self._metrics = watchdog, metrics
        self._nominations, self._log, self._tracing = nominations, decision_log, tracing
        self._fast = FastDecider(few_nodes=FEW_NODES)

    def forget(self) -> None:
        """Drop the cached refusals: the plugins have been replaced."""
        self._fast.forget()

    def record(self, attempt: Attempt, profile: Profile, decision: Decision) -> None:
        """Add a decision to metrics, decision log and trace, before it is counted in the table."""
        self._metrics.decided(profile.name, decision)
        self._log.note(attempt, profile, decision, self._view.table)
        if self._tracing is not None:
            self._tracing.decided(attempt, decision)

    def following(self, attempt: Attempt) -> AbstractContextManager[None]:
        """Return a context in which plugin calls are added to the attempt's trace."""
        return self._tracing.following(attempt) if self._tracing is not None else nullcontext()

    def begin(self, attempt: Attempt, profile: Profile) -> Decision | DecisionInProgress:
        """Decide, or return the rest of a decision that takes more than one turn."""
        request, table = attempt.request, self._view.table
        nominated = self._view.state.held(request.key) if table.allocation_state.lowest_held() is not None else ""
        if not nominated and self._watchdog.trail is None:  # A trace shows every plugin of a refusal.
            known = self._fast.refusal(request, table.version)
            if known is not None:
                return known
        began = perf_counter()
        made = self._guarded(attempt, lambda: self._decide(attempt, profile, nominated))
        seconds, sampled = perf_counter() - began, self._watchdog.sampled and self._watchdog.trail is None
        if not isinstance(made, Decision):
            return DecisionInProgress(attempt, request, profile, nominated, made, table.version, seconds, sampled)
        if sampled:
            self._metrics.decisions.add(seconds)
        if not nominated:
            self._fast.remember(profile, request, made, table.version)
        return made

    async def finish(self, running: DecisionInProgress) -> Decision | None:
        """Continue a decision until it ends; other tasks run between its steps, but no other scheduling cycle.

        When the table has changed meanwhile the decision starts again, so the result is the one that a single turn
        would have given. None: the instance is gone, or has changed and is queued again.
        """
        attempt, request, starts = running.attempt, running.request, 1
        self._queue.decide_on(attempt)
        while True:
            await asyncio.sleep(0)
            if self._queue.attempt(request.key) is not attempt:
                return None
            if attempt.request != request:
                self._queue.drop_held(attempt)
                self._queue.retry(attempt)
                return None
            with self.following(attempt):
                made = None
                if self._view.table.version != running.version:
                    starts += 1
                    made = self._restart(running)
                if made is None:
                    made = self._continue(running, whole=starts >= RESTARTS_MOST)
            if made is not None:
                self._queue.drop_held(attempt)
                return made

    def _restart(self, running: DecisionInProgress) -> Decision | None:
        made = self.begin(running.attempt, running.profile)
        if isinstance(made, Decision):
            return made
        running.nominated, running.steps, running.version = made.nominated, made.steps, made.version
        running.seconds += made.seconds
        return None

    def _continue(self, running: DecisionInProgress, *, whole: bool) -> Decision | None:
        """Run some steps, or all of them (`whole`); None: the decision is not made yet."""
        began = perf_counter()
        made = self._guarded(running.attempt, lambda: at_once(running.steps) if whole else _some(running.steps))
        running.seconds += perf_counter() - began
        if made is not None:
            if running.sampled:
                self._metrics.decisions.add(running.seconds)
            if not running.nominated:
                self._fast.remember(running.profile, running.request, made, running.version)
        return made

    def _decide(self, attempt: Attempt, profile: Profile, nominated: str) -> Decision | Steps[Decision]:
        table = self._view.table
        fast: FastDecider | None = self._fast
        if self._tracing is not None and self._watchdog.trail is not None:
            fast = None if self._tracing.affords(attempt, len(table)) else FAST
        return begin(
            profile,
            attempt.request,
            table.snapshot(),
            nominated=nominated,
            consulted=attempt.consulted,
            watch=self._watchdog,
            moment=lambda: self._nominations.moment(attempt),
            fast=fast,
        )

    def _guarded(self, attempt: Attempt, work: Callable[[], T]) -> T | Decision:
        watchdog = self._watchdog
        watchdog.enter()
        try:
            try:
                return work()
            finally:
                watchdog.leave()
        except Overrun:  # raised while leaving
            return broken_off(attempt.request.key, watchdog.last)


def _some(steps: Steps[Decision]) -> Decision | None:
    """Run the steps of one turn; None: the decision is not made yet."""
    looks = 0
    while looks < TURN:
        try:
            looks += next(steps)
        except StopIteration as end:
            made: Decision = end.value
            return made
    return None
