"""How placements end: bound, or given up. Whoever reserved hears of exactly one of the two."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mandor.lib.clock import Clock
from mandor.placement.cycle import Decision
from mandor.placement.framework.context import Context, run_post_binds, run_unreserve
from mandor.placement.framework.points import ANYTHING
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.plugins.gang import Gang
from mandor.scheduler.bind_batch import BindBatches
from mandor.scheduler.binding import NotBound
from mandor.scheduler.gangs import Gangs
from mandor.scheduler.metrics import SchedulerMetrics
from mandor.scheduler.permits import PermitWaits
from mandor.scheduler.queue import Entry, SchedulingQueue
from mandor.scheduler.tracing import Tracing
from mandor.scheduler.view import Promise, View
from mandor.scheduler.watchdog import Watchdog
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

NOTED_MOST = 64
"""While more than this are on their way or in the queue, only remarkable binds are told as events."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Where the scheduler takes it from here."""

    write: Callable[[Promise], None]
    write_whole: Callable[[Sequence[Promise]], None]
    wait: Callable[[Entry, Decision], None]
    fault: Callable[[Entry, str], None]
    wake: Callable[[], None]


class Outcomes:
    """Of promises that are on their way to the store, or through the plugins that have a say before that."""

    def __init__(
        self,
        view: View,
        queue: SchedulingQueue,
        room: PermitWaits,
        gangs: Gangs,
        watchdog: Watchdog,
        recorder: Recorder,
        clock: Clock,
        measures: SchedulerMetrics,
        ways: Ways,
        tracing: Tracing | None = None,
    ) -> None:
        self._view = view
        self._queue = queue
        self._room = room
        self._gangs = gangs
        self._watchdog = watchdog
        self._recorder = recorder
        self._clock = clock
        self._measures = measures
        self._ways = ways
        self._tracing = tracing
        self.parties = BindBatches(write=ways.write_whole, give_up=self._fail_with_others)
        self._writing: dict[int, asyncio.Future[bool]] = {}
        """By the promise's id: another instance may take the name of one that is gone."""
        self._reserved: dict[int, Promise] = {}
        """Of those whose plugins are to hear the end: the ones that have not."""
        self._broken: set[int] = set()
        """Promises, by id, whose party is broken up, and whose binding cycle does not know it yet."""

    def reserving(self, promise: Promise) -> None:
        """Its plugins hear how it ends."""
        self._reserved[id(promise)] = promise

    async def bind(self, request: PlacementRequest, node: str) -> None:
        promise = self._view.promised(request.key)
        ours = promise is not None and promise.context is not None and promise.context.request is request
        known = id(promise) in self._writing or id(promise) in self._broken
        if promise is None or not ours or promise.node != node or known:
            raise NotBound(f"{request.key.name} is not to be bound to {node}")
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._writing[id(promise)] = written
        if promise in self.parties:
            self.parties.arrive(promise)
        else:
            self._ways.write(promise)
            self._ways.wake()
        if not await written:
            raise NotBound(f"{request.key.name} or {node} has changed")

    def written(self, promise: Promise) -> None:
        written = self._writing.pop(id(promise), None) if self._writing else None
        if written is None:
            self.bound(promise)
        elif not written.done():
            written.set_result(True)

    def not_written(self, promise: Promise) -> None:
        written = self._writing.pop(id(promise), None)
        if written is None:
            self.failed(promise)
        elif not written.done():
            written.set_result(False)

    def bound(self, promise: Promise) -> None:
        self._measures.waits.add(self._clock.now() - promise.entry.queued_at)
        context = promise.context
        if self._tracing is not None:
            with self._tracing.bound(promise):
                self._end_well(promise, context)
        elif context is not None:
            self._end_well(promise, context)
        if promise.relaxed or promise.shape or (len(self._queue) <= NOTED_MOST and self._view.promises <= NOTED_MOST):
            versions = context.profile.versions if context is not None else ()
            without = "".join(f", without `{rule}`" for rule in promise.relaxed)
            by = f" ({', '.join(versions)})" if versions else ""
            form = f" as {promise.shape.form_name}" if promise.shape is not None else ""
            text = f"placed on {promise.node}{form}{without}{by}"
            self._recorder.note(promise.instance, "Scheduled", text, node=promise.node)

    def _end_well(self, promise: Promise, context: Context | None) -> None:
        """Those who had a say in it hear of it; without a context there is nobody, and it is in no gang."""
        if context is None:
            return
        self._reserved.pop(id(promise), None)
        self.parties.arrive(promise, written=True)
        self._gangs.written(promise.entry.request, promise.instance.meta.uid)
        if context.profile.post_binds:
            for fault in self._watchdog.run(lambda: run_post_binds(context, self._watchdog)):
                log.warning("%s is bound; %s", promise.key, fault, extra={"facts": _facts(promise)})

    def failed(self, promise: Promise) -> None:
        """Somebody changed it or its node meanwhile: decide again."""
        if self._give_up(promise):
            self._measures.taken_back += 1
            if self._tracing is not None:
                self._tracing.refused(promise.entry, "TakenBack", "it or its node has changed meanwhile")
            if promise.entry.attempts:
                self._queue.back_off(promise.entry, now=self._clock.monotonic())
            else:
                self._queue.retry(promise.entry)
            self._ways.wake()

    def abort(self, promise: Promise, message: str) -> None:
        """Something went wrong: again, after a pause."""
        if self._give_up(promise):
            self._ways.fault(promise.entry, message)
            self._ways.wake()

    def deny(self, promise: Promise, plugin: str, why: str) -> None:
        """A permit was refused: again, when something has happened that the plugin cares for."""
        if self._give_up(promise):
            assert promise.context is not None
            blamed = promise.context.profile.plugin(plugin)
            denied = Decision(
                promise.key,
                message=f"{plugin} does not permit it: {why}",
                retry_on=blamed.retry_on if blamed is not None else ANYTHING,
                blamed=(blamed,) if blamed is not None else (),
            )
            self._ways.wait(promise.entry, denied)
            self._ways.wake()

    def _give_up(self, promise: Promise) -> bool:
        """True: the instance still waits for a node."""
        self.parties.fail(promise)
        self._gangs.given_up(promise.entry.request)
        self._broken.discard(id(promise))
        self._unreserve(promise)
        return self._view.take_back(promise)

    def _fail_with_others(self, promise: Promise, begun: bool) -> None:
        """Another one of its party is not to be bound, so it is not either."""
        if not begun:
            self.failed(promise)
        elif id(promise) in self._writing:
            self.not_written(promise)
        elif not self._room.reject(promise.key, Gang.name, "others of its gang could not be bound"):
            self._broken.add(id(promise))  # A plugin is at work for it; it is refused when it comes to be written.

    def _unreserve(self, promise: Promise) -> None:
        context = promise.context
        if self._reserved.pop(id(promise), None) is None or context is None:
            return
        for fault in self._watchdog.run(lambda: run_unreserve(context, self._watchdog)):
            log.warning("%s gives %s back; %s", promise.key, promise.node, fault, extra={"facts": _facts(promise)})

    def unreserve_all(self) -> None:
        for promise in list(self._reserved.values()):
            self._unreserve(promise)


def _facts(promise: Promise) -> dict[str, object]:
    """For machines that read the log."""
    key, entry = promise.key, promise.entry
    decision = f"{entry.uid}.{entry.attempts + 1}"
    return {"decision": decision, "namespace": key.namespace, "instance": key.name, "node": promise.node}
