"""The scheduler: takes the next attempt, decides it, counts it in the table; binds are written in the background."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack

from mandor.lib.clock import Clock
from mandor.lib.delay import Delay
from mandor.lib.metrics import Family
from mandor.lib.tasks import Background
from mandor.lib.turns import in_turns
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.priority import PriorityClass
from mandor.model.quota import Quota
from mandor.model.record import Namespace
from mandor.model.reservation import Reservation
from mandor.model.table_report import TableReport
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload
from mandor.placement.consult import unasked
from mandor.placement.decision import Decision
from mandor.placement.framework.handle import GangMembers, Handle
from mandor.placement.framework.points import CAPACITY_EVENTS
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.plugins.priority_sort import PrioritySort
from mandor.placement.profiles import made_with
from mandor.scheduler.assigner import Assigner
from mandor.scheduler.attempt import Attempt, AttemptState
from mandor.scheduler.binding import Binder, chunks
from mandor.scheduler.binding_cycle import BindingCycle
from mandor.scheduler.consultations import Consultations, Inquire, refuse_questions
from mandor.scheduler.deciding import Deciding, DecisionInProgress
from mandor.scheduler.decision_log import DecisionLog
from mandor.scheduler.gang_cycle import GangCycle
from mandor.scheduler.gangs import BrokenGangs, Gangs
from mandor.scheduler.handle import ClusterHandle
from mandor.scheduler.metrics import SchedulerMetrics
from mandor.scheduler.nominations import Nominations
from mandor.scheduler.outcomes import Outcomes
from mandor.scheduler.pending_work import PendingWork
from mandor.scheduler.permits import PermitWaits
from mandor.scheduler.pool_ownership import Pools
from mandor.scheduler.preempting import Preempting
from mandor.scheduler.profiles_in_use import ProfilesInUse
from mandor.scheduler.queue import PAUSE, SchedulingQueue
from mandor.scheduler.replica_batch import ReplicaBatch
from mandor.scheduler.requeue import GateReports, Requeue
from mandor.scheduler.status_writer import StatusWriter
from mandor.scheduler.store_retry import stored_now
from mandor.scheduler.table_check import compare
from mandor.scheduler.tracing import Tracing
from mandor.scheduler.unclaimed_pools import UnclaimedPools
from mandor.scheduler.view import View
from mandor.scheduler.volumes import VolumeWriter
from mandor.scheduler.watchdog import Watchdog
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder
from mandor.telemetry.tracer import Tracer

log = logging.getLogger(__name__)

PINNED = 8
"""Cost of a decision for a pinned instance, in ordinary decisions: it shares no cached scores."""
SLICE_MICROSECONDS = 10_000
"""Decisions made in a row before other tasks run, as estimated time. The time is not measured, so that the same input
always gives the same order of events."""
REPLICA_MICROSECONDS = 20
"""Estimated time of one decision in a replica batch."""
GATHERED = 256
"""Binds gathered for the next commits; they are written earlier when no attempt is active."""
CYCLES_MOST = 10_000
"""Binding cycles and consultations in progress; above that, further ones are delayed."""
BURST_SECONDS = 0.25
"""Seconds after a decision during which the scheduler counts as busy."""

WATCHED = (Namespace, PriorityClass, Quota, Reservation, Volume, Node, Release, Workload, Instance)

Profiles = Mapping[str, Profile]


class Scheduler:
    """Scheduling cycles run one after another; binds are written beside them.

    An attempt goes from the queue through `Deciding` and `Assigner` to the `Binder`, and ends in `Outcomes`, or returns
    to the queue by `Requeue`. All state is rebuilt from the store: an assignment that was not written is forgotten.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        recorder: Recorder,
        *,
        profiles: Profiles | Callable[[Handle], Profiles] | None = None,
        seed: str = "",
        pause: Delay = PAUSE,
        inquire: Inquire = refuse_questions,
        watchdog: Watchdog | None = None,
        pools: Pools = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`pools`: the node pools of this scheduler; None: all. `tracer`: exports spans of instances that are part of
        a trace; None: no spans."""
        self._store = store
        self._clock = clock
        self._pools = pools
        self.watchdog = watchdog or Watchdog()
        self._mirrors = {each.kind: Mirror(store, each.kind) for each in WATCHED}
        instances, workloads = self._mirrors[Instance.kind], self._mirrors[Workload.kind]
        self._tracing = Tracing(tracer, instances, self.watchdog, clock) if tracer is not None else None
        self._metrics = SchedulerMetrics()
        self._work = PendingWork()
        self._wake = self._work.wake
        self._status = StatusWriter(store, recorder, instances)
        self._in_use = ProfilesInUse()

        self._queue = SchedulingQueue(
            PrioritySort(),
            pause=pause,
            gates=self._in_use.pre_enqueues,
            outright=self._in_use.outright,
            call=self.watchdog.call if self._tracing is None else self._tracing.call,
            gated=GateReports(self._status, self._tracing, self._wake).report,
        )
        permits = PermitWaits(clock)
        self.view = View(self._queue, instances, workloads, seed=seed, gone=permits.withdraw, pools=pools)
        table = self.view.table
        self._gangs = Gangs(clock, instances, workloads)
        self._nominations = Nominations(self.view, self._queue, instances, self._work, clock)
        self._requeue = Requeue(self._queue, self._nominations, self._status, clock, self._tracing)
        self._outcomes = Outcomes(
            self.view,
            self._queue,
            permits,
            self._gangs,
            self._requeue,
            self._work,
            self.watchdog,
            recorder,
            clock,
            self._metrics,
            self._tracing,
        )
        volumes = VolumeWriter(store, clock)
        self.handle: Handle = ClusterHandle(table, permits, self._outcomes, volumes, self._gangs, inquire)
        self._in_use.replace(made_with(profiles, self.handle))
        self._queue.use(self.profiles["default"].queue_sort, now=clock.monotonic())

        self._log = DecisionLog(store, clock, self.watchdog)
        self._deciding = Deciding(
            self.view, self._queue, self.watchdog, self._metrics, self._nominations, self._log, self._tracing
        )
        self._replicas = ReplicaBatch(self.view, self._queue, self._log, self._metrics, self.watchdog)
        self._consultations = Consultations(
            inquire, table, self._queue, self._requeue, self._work, self.watchdog, clock, self._tracing
        )
        self._assigner = Assigner(
            self.view, self._gangs, self._nominations, permits, self._outcomes, self._work, self.watchdog
        )
        self._gang_cycle = GangCycle(
            self._queue,
            self._gangs,
            table,
            self._deciding,
            self._nominations,
            self._consultations,
            self._assigner,
            self._outcomes,
            self._requeue,
            self._status,
            self._work,
            self.watchdog,
            clock,
        )
        self._binder = Binder(
            store,
            clock,
            bound=self._outcomes.written,
            failed=self._outcomes.not_written,
            marked=self._tracing.binding if self._tracing is not None else None,
        )
        self._binding = BindingCycle(store, clock, permits, self._outcomes, self._work, self.watchdog, self._tracing)
        self._preempting = Preempting(store, clock, recorder, self._metrics, failed=self._nominations.failed)
        self._unclaimed = UnclaimedPools(store, clock, pools, self.view.elsewhere, self._status)
        self._broken_gangs = BrokenGangs(store, clock, recorder, self._gangs, instances, self._keeps_gangs)

        self._gang: tuple[Attempt, Profile, GangMembers] | None = None
        """The gang whose cycle is next."""
        self._running: DecisionInProgress | None = None
        """The decision that continues in the next turn."""
        self._idles = False
        self._decided_at = -BURST_SECONDS
        self.timed: Callable[[float], None] | None = None
        """Called with the seconds that each decision took, for benchmarks."""

    def _keeps_gangs(self, workload: Workload, group: str) -> bool:
        profile = self.profiles.get(workload.spec.profile)
        ours = self._pools is None or workload.spec.groups[group].placement.home in self._pools
        return ours and profile is not None and bool(profile.gangs)

    def state(self, key: Key) -> AttemptState | None:
        """Return the state of an instance in the queue; None: not in the queue."""
        return self._queue.state(key)

    async def compare_table(self) -> TableReport:
        """Compare the table with the store."""
        return await compare(self.view, self._store, self._clock)

    @property
    def busy(self) -> bool:
        """Return whether an attempt is active, or one was within `BURST_SECONDS`: a burst arrives in pieces."""
        return self._queue.ready or self._clock.monotonic() - self._decided_at < BURST_SECONDS

    @property
    def profiles(self) -> Profiles:
        return self._in_use.by_name

    def metrics(self) -> Iterator[Family]:
        """Return the metric families of the scheduler."""
        return self._metrics.families(self._queue, self.watchdog, len(self.view.table))

    def use(self, profiles: Profiles, pause: Delay | None = None) -> None:
        """Use other profiles from the next cycle on; attempts that have a node keep the plugins that decided them."""
        self._in_use.replace(profiles)
        self._deciding.forget()
        self._queue.use(profiles["default"].queue_sort, now=self._clock.monotonic(), pause=pause)
        self._wake.set()

    async def run(self) -> None:
        """Schedule until cancelled; raise when the leadership is lost."""
        for mirror in self._mirrors.values():
            mirror.listen(self._apply)
        async with AsyncExitStack() as stack:
            stack.enter_context(self.watchdog)
            for mirror in self._mirrors.values():
                await stack.enter_async_context(mirror)
            for mirror in self._mirrors.values():
                await mirror.synced()
            await self._size_all()
            stack.callback(self._outcomes.unreserve_all)
            async with Background() as tasks:
                tasks.start(self._status.run(), "status writer")
                tasks.start(self._log.run(), "decision log")
                tasks.start(self._broken_gangs.run(), "broken gangs")
                tasks.start(self._unclaimed.run(), "unclaimed pools")
                await self._schedule(tasks)

    def _apply(self, changes: Sequence[Change]) -> None:
        if isinstance(changes[0].value, Workload):
            changes = [each for each in changes if not each.status_only]
            if not changes:
                return
        self._gangs.apply_all(changes)
        self.view.apply_all(changes)
        self._nominations.apply_all(changes)
        self._unclaimed.changed()
        if self._has_work:
            self._wake.set()
        elif self._idles:
            self.view.take_events()  # No attempt waits for these events.

    @property
    def _has_work(self) -> bool:
        """Return whether any change can affect the next turn."""
        queue, view = self._queue, self.view
        return queue.ready or view.state.behind or self._gangs.behind or queue.awaits(view.events)

    async def _size_all(self) -> None:
        """Read the objects that placed instances refer to and the mirrors have not shown, before the first decision."""
        for key in self.view.state.missing():
            found = await stored_now(self._store, self._clock, key)
            if found is None:
                self.view.without(key)
            else:
                await self._mirrors[key.kind].reached(found.meta.version)

    async def _schedule(self, tasks: Background) -> None:
        binds: list[Attempt] = []
        while True:
            self._wake.clear()
            if self.view.state.behind:
                await in_turns(self.view.state.catch_up())
            if self.view.events:
                events, details = self.view.take_events()
                await in_turns(self._queue.wake_on(events, now=self._clock.monotonic(), details=details))
            if self._gangs.behind:
                await in_turns(self._gangs.count_new())
            if self.view.state.behind:
                continue
            self._queue.flush(now=self._clock.monotonic())
            tried = self._decide_some(binds)
            if tried:
                self._decided_at = self._clock.monotonic()
            if self._gang is not None:
                gang, self._gang = self._gang, None
                await self._gang_cycle.run(*gang, self._slice)
            if self._running is not None:
                running, self._running = self._running, None
                await self._finish(running)
            await self._start_work(tasks)
            binds += self._work.binds
            self._work.binds.clear()
            if len(binds) >= GATHERED or not tried:
                await self._bind(tasks, binds)
                binds = []
            self._idles = not tried
            await (self._idle() if self._idles else asyncio.sleep(0))
            self._idles = False

    async def _start_work(self, tasks: Background) -> None:
        """Start all pending work but the single binds."""
        work = self._work
        for attempt, slot in work.binding_cycles:
            tasks.start(self._binding.run(attempt, slot), f"binding cycle of {attempt.key.name}")
        for attempt, profile in work.consultations:
            tasks.start(self._consultations.run(attempt, profile), f"questions about {attempt.key.name}")
        for order in work.preemptions:
            tasks.start(self._preempting.carry_out(order), f"preemption for {order.name}")
        work.binding_cycles.clear()
        work.consultations.clear()
        work.preemptions.clear()
        while work.gang_binds:
            await self._binder.room.acquire()
            writing = tasks.start(self._binder.write_whole(work.gang_binds.pop(0)), "bind a gang")
            writing.add_done_callback(lambda _: self._binder.room.release())

    async def _bind(self, tasks: Background, attempts: Sequence[Attempt]) -> None:
        current = []
        for each in attempts:
            if self.view.assigned(each.key) is each:
                current.append(each)
            else:  # The instance is gone; another one may have its name.
                self._outcomes.not_written(each)
        for chunk in chunks(current):
            await self._binder.room.acquire()
            writing = tasks.start(self._binder.write(chunk), "bind")
            writing.add_done_callback(lambda _: self._binder.room.release())

    async def _idle(self) -> None:
        """Wait for a change or for the end of the next pause."""
        at = self._queue.next_at()
        if at is None:
            await self._wake.wait()
            return
        alarm = self._clock.alarm(max(0.0, at - self._clock.monotonic()), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            alarm.cancel()

    # The scheduling cycle: nothing here waits.

    def _decide_some(self, binds: list[Attempt]) -> int:
        """Make the decisions of one turn; add the attempts to be written to `binds`. Return the number of decisions."""
        each = SLICE_MICROSECONDS // self._slice
        left, tried = SLICE_MICROSECONDS, 0
        while left >= each and (attempt := self._queue.pop()) is not None:
            left -= each * PINNED if attempt.request.pin else each
            tried += 1
            if self._cycle(attempt):
                binds.append(attempt)
                if attempt.context is None and self._tracing is None:
                    replicas = self._decide_replicas(attempt.request, left // REPLICA_MICROSECONDS, binds)
                    left -= replicas * REPLICA_MICROSECONDS
                    tried += replicas
            elif self._gang is not None or self._running is not None:
                break
        return tried

    def _decide_replicas(self, request: PlacementRequest, most: int, binds: list[Attempt]) -> int:
        """Decide the replicas of an instance that are next in the queue; return the number of decisions."""
        placed, others = self._replicas.follow(request, self.profiles[request.profile], most, self.timed)
        binds += placed
        for number, attempt in enumerate(others, 1):
            if self._cycle(attempt):
                binds.append(attempt)
            if self._running is not None:
                self._queue.put_first(others[number:])
                return len(placed) + number
        return len(placed) + len(others)

    @property
    def _slice(self) -> int:
        """The number of decisions in a row, fewer with more nodes."""
        return max(16, SLICE_MICROSECONDS // (60 + len(self.view.table) // 25))

    def _cycle(self, attempt: Attempt) -> bool:
        """Run the scheduling cycle of an attempt; return whether its bind is to be written now."""
        if self._tracing is not None:
            with self._tracing.following(attempt):
                return self._timed_cycle(attempt)
        return self._timed_cycle(attempt)

    def _timed_cycle(self, attempt: Attempt) -> bool:
        if self.timed is None:
            return self._decide(attempt)
        began = time.perf_counter()
        made = self._decide(attempt)
        if self._running is None:
            self.timed(time.perf_counter() - began)
        return made

    def _decide(self, attempt: Attempt) -> bool:
        request = attempt.request
        profile = self._in_use.get(request.profile)
        if profile is None:
            message = f"there is no profile {request.profile}"
            self._requeue.unschedulable(attempt, Decision(request.key, message=message, retry_on=CAPACITY_EVENTS))
            return False
        delayed = profile.consults or profile.permits or not profile.batches(request)
        if self._work.running >= CYCLES_MOST and delayed:
            self._queue.back_off(attempt, now=self._clock.monotonic())
            return False
        if request.member is not None:
            gang_members = self._gang_cycle.gang_members(attempt, profile)
            if gang_members is not None:
                self._gang = attempt, profile, gang_members
                return False
        if profile.consults and attempt.consulted is None:
            self._consultations.start(attempt, profile)
            return False
        made = self._deciding.begin(attempt, profile)
        if isinstance(made, DecisionInProgress):
            self._running = made
            return False
        return self._conclude(attempt, profile, made)

    async def _finish(self, running: DecisionInProgress) -> None:
        """End a decision that takes several turns; no other scheduling cycle starts meanwhile."""
        decision = await self._deciding.finish(running)
        if decision is None:
            return
        if self.timed is not None:
            self.timed(running.seconds)
        with self._deciding.following(running.attempt):
            ready = self._conclude(running.attempt, running.profile, decision)
        if ready:
            self._work.binds.append(running.attempt)

    def _conclude(self, attempt: Attempt, profile: Profile, decision: Decision) -> bool:
        """Assign the node, or put the attempt back; return whether the bind is to be written now."""
        attempt.consulted = None
        if decision.node and unasked(profile, decision.state):
            self._queue.back_off(attempt, now=self._clock.monotonic())
            return False
        self._deciding.record(attempt, profile, decision)
        if decision.node:
            return self._assigner.take(attempt, profile, decision)
        if decision.fault:
            self._requeue.after_fault(attempt, decision.message)
        else:
            self._requeue.unschedulable(attempt, decision)
        return False
