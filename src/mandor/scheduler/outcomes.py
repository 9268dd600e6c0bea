"""How assigned attempts end: bound, or given up. A plugin that reserved sees exactly one of the two."""

import asyncio
import logging

from mandor.lib.clock import Clock
from mandor.placement.decision import Decision
from mandor.placement.framework.context import Context, run_post_binds, run_unreserve
from mandor.placement.framework.points import CAPACITY_EVENTS
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.plugins.gang import Gang
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.bind_batch import BindBatches
from mandor.scheduler.binding import NotBound
from mandor.scheduler.gangs import Gangs
from mandor.scheduler.metrics import SchedulerMetrics
from mandor.scheduler.pending_work import PendingWork
from mandor.scheduler.permits import PermitWaits
from mandor.scheduler.queue import SchedulingQueue
from mandor.scheduler.requeue import Requeue
from mandor.scheduler.tracing import Tracing
from mandor.scheduler.view import View
from mandor.scheduler.watchdog import Watchdog
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

EVENTS_MOST = 64
"""Attempts in the queue or being bound above which ordinary binds get no event."""


class Outcomes:
    """Ends the attempts that have a node: after the write of their bind, or when a plugin or the store refuses it."""

    def __init__(
        self,
        view: View,
        queue: SchedulingQueue,
        permits: PermitWaits,
        gangs: Gangs,
        requeue: Requeue,
        work: PendingWork,
        watchdog: Watchdog,
        recorder: Recorder,
        clock: Clock,
        metrics: SchedulerMetrics,
        tracing: Tracing | None = None,
    ) -> None:
        self._view = view
        self._queue = queue
        self._permits = permits
        self._gangs = gangs
        self._requeue = requeue
        self._work = work
        self._watchdog = watchdog
        self._recorder = recorder
        self._clock = clock
        self._metrics = metrics
        self._tracing = tracing
        self.batches = BindBatches()
        self._writing: dict[Attempt, asyncio.Future[bool]] = {}
        """Attempts whose Bind plugin waits for the write."""
        self._reserved: dict[Attempt, None] = {}
        """Attempts with a successful Reserve and no end yet."""
        self._given_up: set[Attempt] = set()
        """Attempts of a bind batch that was given up while a plugin of theirs was running."""

    def reserving(self, attempt: Attempt) -> None:
        """Note that Reserve plugins are called, so that PostBind or Unreserve follows."""
        self._reserved[attempt] = None

    async def bind(self, request: PlacementRequest, node: str) -> None:
        """Write the bind of an assigned attempt, on behalf of a Bind plugin; raise `NotBound` if it is refused."""
        attempt = self._view.assigned(request.key)
        ours = attempt is not None and attempt.context is not None and attempt.context.request is request
        if attempt is None or not ours or attempt.node != node or attempt in self._writing or attempt in self._given_up:
            raise NotBound(f"{request.key.name} is not to be bound to {node}")
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._writing[attempt] = written
        if attempt in self.batches:
            self.ready(attempt)
        else:
            self._work.binds.append(attempt)
            self._work.wake.set()
        if not await written:
            raise NotBound(f"{request.key.name} or {node} has changed")

    def ready(self, attempt: Attempt, *, written: bool = False) -> None:
        """Mark an attempt of a bind batch as ready, or as written; the last one makes the batch due for its write."""
        due = self.batches.arrive(attempt, written=written)
        if due:
            self._work.gang_binds.append(due)
            self._work.wake.set()

    def written(self, attempt: Attempt) -> None:
        """End an attempt whose bind is stored, or let its Bind plugin continue."""
        written = self._writing.pop(attempt, None) if self._writing else None
        if written is None:
            self.bound(attempt)
        elif not written.done():
            written.set_result(True)

    def not_written(self, attempt: Attempt) -> None:
        """End an attempt whose bind was refused by the store, or let its Bind plugin fail."""
        written = self._writing.pop(attempt, None)
        if written is None:
            self.failed(attempt)
        elif not written.done():
            written.set_result(False)

    def bound(self, attempt: Attempt) -> None:
        self._metrics.waits.add(self._clock.now() - attempt.queued_at)
        context = attempt.context
        if self._tracing is not None:
            with self._tracing.bound(attempt):
                self._post_bind(attempt, context)
        elif context is not None:
            self._post_bind(attempt, context)
        quiet = len(self._queue) > EVENTS_MOST or self._view.binding > EVENTS_MOST
        if attempt.instance is not None and (attempt.relaxed or attempt.shape or not quiet):
            versions = context.profile.versions if context is not None else ()
            without = "".join(f", without `{rule}`" for rule in attempt.relaxed)
            by = f" ({', '.join(versions)})" if versions else ""
            form = f" as {attempt.shape.form_name}" if attempt.shape is not None else ""
            text = f"placed on {attempt.node}{form}{without}{by}"
            self._recorder.note(attempt.instance, "Scheduled", text, node=attempt.node)

    def _post_bind(self, attempt: Attempt, context: Context | None) -> None:
        """Call PostBind plugins. An attempt without a context has no plugins and is in no gang."""
        if context is None:
            return
        self._reserved.pop(attempt, None)
        self.ready(attempt, written=True)
        self._gangs.written(attempt.request, attempt.uid)
        if context.profile.post_binds:
            for fault in self._watchdog.run(lambda: run_post_binds(context, self._watchdog)):
                log.warning("%s is bound; %s", attempt.key, fault, extra={"facts": _facts(attempt)})

    def failed(self, attempt: Attempt) -> None:
        """Retry, because the instance or its node changed before the bind was written."""
        if self._give_up(attempt):
            self._metrics.taken_back += 1
            if self._tracing is not None:
                self._tracing.refused(attempt, "TakenBack", "the instance or its node has changed meanwhile")
            if attempt.failures:
                self._queue.back_off(attempt, now=self._clock.monotonic())
            else:
                self._queue.retry(attempt)
            self._work.wake.set()

    def abort(self, attempt: Attempt, message: str) -> None:
        """Retry after a pause, because a plugin failed."""
        if self._give_up(attempt):
            self._requeue.after_fault(attempt, message)
            self._work.wake.set()

    def deny(self, attempt: Attempt, plugin: str, why: str) -> None:
        """Wait for an event that the plugin has registered for, because it denied the permit."""
        if self._give_up(attempt):
            assert attempt.context is not None
            blamed = attempt.context.profile.plugin(plugin)
            denied = Decision(
                attempt.key,
                message=f"{plugin} does not permit it: {why}",
                retry_on=blamed.retry_on if blamed is not None else CAPACITY_EVENTS,
                blamed=(blamed,) if blamed is not None else (),
            )
            self._requeue.unschedulable(attempt, denied)
            self._work.wake.set()

    def _give_up(self, attempt: Attempt) -> bool:
        """Free the node; return whether the instance still needs one."""
        for other, binding in self.batches.fail(attempt):
            self._fail_with_batch(other, binding=binding)
        self._gangs.given_up(attempt.request)
        self._given_up.discard(attempt)
        self._unreserve(attempt)
        return self._view.withdraw(attempt)

    def _fail_with_batch(self, attempt: Attempt, *, binding: bool) -> None:
        """Fail an attempt because another one of its bind batch failed. `binding`: it has a binding cycle."""
        if not binding:
            self.failed(attempt)
        elif attempt in self._writing:
            self.not_written(attempt)
        elif not self._permits.reject(attempt.key, Gang.name, "other members of its gang could not be bound"):
            self._given_up.add(attempt)  # A plugin is running; `bind` refuses when it comes to the write.

    def _unreserve(self, attempt: Attempt) -> None:
        context = attempt.context
        if attempt not in self._reserved or context is None:
            return
        del self._reserved[attempt]
        for fault in self._watchdog.run(lambda: run_unreserve(context, self._watchdog)):
            log.warning("%s gives %s back; %s", attempt.key, attempt.node, fault, extra={"facts": _facts(attempt)})

    def unreserve_all(self) -> None:
        """Call Unreserve for every attempt without an end, at shutdown."""
        for attempt in list(self._reserved):
            self._unreserve(attempt)


def _facts(attempt: Attempt) -> dict[str, object]:
    """Return the structured fields of a log line."""
    key = attempt.key
    decision = f"{attempt.uid}.{attempt.number}"
    return {"decision": decision, "namespace": key.namespace, "instance": key.name, "node": attempt.node}
