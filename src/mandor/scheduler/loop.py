"""The scheduler: takes the next instance, decides, counts it at once, and has it written in the background."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.metrics import Family
from mandor.lib.steps import in_turns
from mandor.lib.tasks import Background
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.priority import PriorityClass
from mandor.model.quota import Quota
from mandor.model.reservation import Reservation
from mandor.model.table_report import TableReport
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload
from mandor.placement.consult import unasked
from mandor.placement.cycle import Decision
from mandor.placement.framework.context import Context, run_permits, run_reserve
from mandor.placement.framework.handle import GangMembers, Handle
from mandor.placement.framework.points import ANYTHING
from mandor.placement.framework.profile import DEFAULT_BINDER, Profile, check_together
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.watch import Overrun
from mandor.placement.profiles import made_with
from mandor.scheduler.binding import Binder, NotBound, chunks
from mandor.scheduler.binding_cycle import BindingCycle, Step, unseen
from mandor.scheduler.consulting import Consulting, Inquire, ask_nobody
from mandor.scheduler.deciding import Begun, Deciding
from mandor.scheduler.decision_log import DecisionLog
from mandor.scheduler.gang_cycle import GangCycle, Steps
from mandor.scheduler.gangs import BrokenGangs, Gangs
from mandor.scheduler.handle import ClusterHandle
from mandor.scheduler.metrics import SchedulerMetrics
from mandor.scheduler.nominations import Nominations
from mandor.scheduler.outcomes import Outcomes, Ways
from mandor.scheduler.permits import Denied, PermitSlot, PermitWaits
from mandor.scheduler.pool_ownership import Pools
from mandor.scheduler.preempting import Preempting
from mandor.scheduler.queue import PAUSE, Entry, Place, SchedulingQueue
from mandor.scheduler.replica_batch import ReplicaBatch
from mandor.scheduler.status_writer import StatusWriter
from mandor.scheduler.store_retry import stored_now
from mandor.scheduler.table_check import compare
from mandor.scheduler.tracing import Tracing
from mandor.scheduler.unclaimed_pools import UnclaimedPools
from mandor.scheduler.view import Promise, View
from mandor.scheduler.volumes import VolumeWriter
from mandor.scheduler.watchdog import Watchdog
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder
from mandor.telemetry.tracer import Tracer

log = logging.getLogger(__name__)

PINNED = 8
"""A decision for one that may only go to a certain node takes as long as so many others: nobody else is like it."""
SLICE_MICROSECONDS = 10_000
"""About so long decisions are made in a row, then others get their turn. It is counted in decisions and not
measured, so that the same input always gives the same course of events."""
ALIKE_MICROSECONDS = 20
"""About so long takes each of several decisions about one question."""
GATHERED = 256
"""So many decisions are written together, or fewer when nobody waits."""
CYCLES_MOST = 10_000
"""So many placements may be on their way through plugins, or be asked about; the others wait their turn."""
BURST_SECONDS = 0.25

WATCHED = (PriorityClass, Quota, Reservation, Volume, Node, Release, Workload, Instance)

Profiles = Mapping[str, Profile]


class Scheduler:
    """Cycles run strictly one after another; binds run beside them. It keeps nothing: all it knows is in the
    store, and what it had promised and not written when it died was never promised."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        recorder: Recorder,
        *,
        profiles: Profiles | Callable[[Handle], Profiles] | None = None,
        seed: str = "",
        pause: Backoff = PAUSE,
        inquire: Inquire = ask_nobody,
        watchdog: Watchdog | None = None,
        pools: Pools = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`pools`: what is in others, or wants to be, is another scheduler's; None: all are this one's. `tracer`: keeps
        spans of instances that are part of a trace; None: none are."""
        self._store = store
        self._clock = clock
        self._recorder = recorder
        self.watchdog = watchdog or Watchdog()
        self._consulting = Consulting(inquire, self.watchdog)
        self._room = PermitWaits(clock)
        self._mirrors = {each.kind: Mirror(store, each.kind) for each in WATCHED}
        self._instances = self._mirrors[Instance.kind]
        self._tracing = Tracing(tracer, self._instances, self.watchdog, clock) if tracer is not None else None
        self._gangs = Gangs(clock, self._instances, self._mirrors[Workload.kind])
        self.handle: Handle = ClusterHandle(
            lambda: self.view.table.snapshot(),  # noqa: PLW0108 - the view is made later
            self._room,
            lambda request, node: self._outcomes.bind(request, node),  # noqa: PLW0108 - these are made later, too
            VolumeWriter(store, clock).write,
            self._gangs.gang_members,
            inquire,
        )
        self._profiles = made_with(profiles, self.handle)
        check_together(self._profiles)
        self._queue = SchedulingQueue(
            self._profiles["default"].queue_sort,
            pause=pause,
            gates=lambda each: self._profiles[each.profile].pre_enqueues if each.profile in self._profiles else (),
            outright=lambda each: self._profiles[each.profile].outright if each.profile in self._profiles else (),
            call=self.watchdog.call if self._tracing is None else self._tracing.call,
            told=self._kept_out,
        )
        self.view = View(
            self._queue, self._instances, self._mirrors[Workload.kind], seed=seed, gone=self._gone, pools=pools
        )
        self._binding = BindingCycle(clock, self._room, self.watchdog)
        self._wake = asyncio.Event()
        self._nominations = Nominations(self.view, self._queue, self._instances, clock, wake=self._wake.set)
        self._measures = SchedulerMetrics()
        self._preempting = Preempting(store, clock, recorder, self._measures, failed=self._nominations.failed)
        self._reasons = StatusWriter(store, recorder, self._instances)
        self._to_write: list[Promise] = []
        self._journal = DecisionLog(store, clock, self.watchdog)
        self._streak = ReplicaBatch(self.view, self._queue, self._journal, self._measures, self.watchdog)
        ways = Ways(self._to_write.append, self._write_whole, self._wait, self._fault, self._wake.set)
        self._outcomes = Outcomes(
            self.view,
            self._queue,
            self._room,
            self._gangs,
            self.watchdog,
            recorder,
            clock,
            self._measures,
            ways,
            self._tracing,
        )
        self._binder = Binder(
            store,
            clock,
            bound=self._outcomes.written,
            failed=self._outcomes.not_written,
            marked=self._tracing.binding if self._tracing is not None else None,
        )
        self._deciding = Deciding(
            self.view, self._queue, self.watchdog, self._measures, self._nominations, self._tracing
        )
        self._gang_cycle = GangCycle(
            self._queue,
            self._gangs,
            self.view.table,
            self.watchdog,
            clock,
            Steps(
                inquire=self._inquire_first,
                promise=self._promise,
                admit=self._admit,
                take=self._take,
                write=self._to_write.append,
                failed=self._outcomes.failed,
                wait=self._wait,
                fault=self._fault,
                tell=self._reasons.tell,
                note=self._note,
                hold=self._nominations.hold,
                moment=self._nominations.moment,
                following=self._deciding.following,
            ),
            self._outcomes.parties,
        )
        self._gang: tuple[Entry, Profile, GangMembers] | None = None
        """The next cycle is a gang's."""
        self._begun: Begun | None = None
        """The cycle that goes on is not over."""
        self._to_start: list[tuple[Promise, PermitSlot | None]] = []
        """Placements whose binding cycle begins, some in the waiting room."""
        self._to_ask: list[tuple[Entry, Profile]] = []
        self._to_write_whole: list[Sequence[Promise]] = []
        self._pools = pools
        self._busy, self._idles = 0, False
        self._decided_at = -BURST_SECONDS
        self._unclaimed = UnclaimedPools(store, clock, pools, self.view.elsewhere, self._reasons.tell)
        self._returning = BrokenGangs(store, clock, recorder, self._gangs, self._instances, self._keeps_gangs)
        self.timed: Callable[[float], None] | None = None
        """Told what each decision took, in seconds."""

    def _keeps_gangs(self, workload: Workload, group: str) -> bool:
        profile = self._profiles.get(workload.spec.profile)
        ours = self._pools is None or workload.spec.groups[group].placement.home in self._pools
        return ours and profile is not None and bool(profile.gangs)

    def place(self, key: Key) -> Place | None:
        """Where in the queue an instance is; None: not there."""
        return self._queue.place(key)

    async def compare_table(self) -> TableReport:
        """With what the store holds now."""
        return await compare(self.view, self._store, self._clock)

    @property
    def busy(self) -> bool:
        """Somebody waits for its decision, or did a moment ago: those of one burst come piece by piece."""
        return self._queue.ready or self._clock.monotonic() - self._decided_at < BURST_SECONDS

    @property
    def profiles(self) -> Profiles:
        return self._profiles

    def metrics(self) -> Iterator[Family]:
        """How it does."""
        return self._measures.families(self._queue, self.watchdog, len(self.view.table))

    def use(self, profiles: Profiles, pause: Backoff | None = None) -> None:
        """From the next cycle on. What is on its way goes on with the plugins that it began with."""
        check_together(profiles)
        self._profiles = profiles
        self._deciding.forget()
        self._queue.use(profiles["default"].queue_sort, now=self._clock.monotonic(), pause=pause)
        self._wake.set()

    async def run(self) -> None:
        """For ever; ends with the error when the leadership is lost."""
        for mirror in self._mirrors.values():
            mirror.listen(self._hear)
        async with AsyncExitStack() as stack:
            stack.enter_context(self.watchdog)
            for mirror in self._mirrors.values():
                await stack.enter_async_context(mirror)
            for mirror in self._mirrors.values():
                await mirror.synced()
            await self._size_all()
            stack.callback(self._outcomes.unreserve_all)
            async with Background() as tasks:
                tasks.start(self._reasons.run(), "refusals")
                tasks.start(self._journal.run(), "decisions")
                tasks.start(self._returning.run(), "gangs in pieces")
                tasks.start(self._unclaimed.run(), "work for pools of nobody")
                await self._schedule(tasks)

    def _hear(self, changes: Sequence[Change]) -> None:
        if isinstance(changes[0].value, Workload):
            changes = [each for each in changes if not each.status_only]
            if not changes:
                return
        self._gangs.apply_all(changes)
        self.view.apply_all(changes)
        self._unclaimed.changed()
        if self._eventful:
            self._wake.set()
        elif self._idles:
            self.view.take_happened()  # It is nothing to anybody.

    @property
    def _eventful(self) -> bool:
        """Of what has changed, there is something that a turn would do more about than look at it."""
        queue, view = self._queue, self.view
        return queue.ready or view.behind or self._gangs.behind or queue.hopes(view.happened)

    async def _size_all(self) -> None:
        """Nothing is decided before it is known how much everything that is placed takes."""
        for key in self.view.missing():
            found = await stored_now(self._store, self._clock, key)
            if found is None:
                self.view.without(key)
            else:
                await self._mirrors[key.kind].reached(found.meta.version)

    async def _schedule(self, tasks: Background) -> None:
        promises: list[Promise] = []
        while True:
            self._wake.clear()
            if self.view.behind:
                await in_turns(self.view.catch_up())
            if self.view.happened:
                happened, details = self.view.take_happened()
                await in_turns(self._queue.happened(happened, now=self._clock.monotonic(), details=details))
            if self._gangs.behind:
                await in_turns(self._gangs.count_new())
            if self.view.behind:
                continue
            self._queue.flush(now=self._clock.monotonic())
            tried = self._decide_some(promises)
            if tried:
                self._decided_at = self._clock.monotonic()
            if self._gang is not None:
                gang, self._gang = self._gang, None
                await self._gang_cycle.run(*gang, self._slice)
            if self._begun is not None:
                begun, self._begun = self._begun, None
                await self._finish(begun)
            self._start_others(tasks)
            await self._bind_whole(tasks)
            promises += self._to_write
            self._to_write.clear()
            if len(promises) >= GATHERED or not tried:
                await self._bind(tasks, promises)
                promises = []
            self._idles = not tried
            await (self._idle() if self._idles else asyncio.sleep(0))
            self._idles = False

    def _start_others(self, tasks: Background) -> None:
        for promise, seat in self._to_start:
            tasks.start(self._binding_cycle(promise, seat), f"binding cycle of {promise.key.name}")
        for entry, profile in self._to_ask:
            tasks.start(self._ask_about(entry, profile), f"questions about {entry.request.key.name}")
        for order in self._nominations.take_orders():
            tasks.start(self._preempting.carry_out(order), f"preemption for {order.name}")
        self._to_start.clear()
        self._to_ask.clear()

    async def _bind_whole(self, tasks: Background) -> None:
        while self._to_write_whole:
            await self._binder.room.acquire()
            writing = tasks.start(self._binder.write_whole(self._to_write_whole.pop(0)), "bind a gang")
            writing.add_done_callback(lambda _: self._binder.room.release())

    async def _bind(self, tasks: Background, promises: Sequence[Promise]) -> None:
        current = []
        for each in promises:
            if self.view.promised(each.entry.request.key) is each:
                current.append(each)
            else:  # it is gone, and another may have its name
                self._outcomes.not_written(each)
        for chunk in chunks(current):
            await self._binder.room.acquire()
            writing = tasks.start(self._binder.write(chunk), "bind")
            writing.add_done_callback(lambda _: self._binder.room.release())

    async def _idle(self) -> None:
        """Until something changes, or somebody's pause is over."""
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

    def _decide_some(self, promises: list[Promise]) -> int:
        """How many were decided; those that found a node are added to `promises`."""
        each = SLICE_MICROSECONDS // self._slice
        left, tried = SLICE_MICROSECONDS, 0
        while left >= each and (entry := self._queue.pop()) is not None:
            left -= each * PINNED if entry.request.pin else each
            tried += 1
            made = self._one_cycle(entry)
            if made is not None:
                promises.append(made)
                if made.context is None and self._tracing is None:
                    alike = self._decide_alike(entry.request, left // ALIKE_MICROSECONDS, promises)
                    left -= alike * ALIKE_MICROSECONDS
                    tried += alike
            elif self._gang is not None or self._begun is not None:
                break
        return tried

    def _decide_alike(self, request: PlacementRequest, most: int, promises: list[Promise]) -> int:
        """How many of its like were decided."""
        made, others = self._streak.follow(request, self._profiles[request.profile], most, self.timed)
        promises += made
        for number, entry in enumerate(others, 1):
            promise = self._one_cycle(entry)
            if promise is not None:
                promises.append(promise)
            if self._begun is not None:
                self._queue.put_first(others[number:])
                return len(made) + number
        return len(made) + len(others)

    def _one_cycle(self, entry: Entry) -> Promise | None:
        if self.timed is not None:
            return self._timed_cycle(entry, self.timed)
        if self._tracing is not None:
            return self._traced_cycle(entry, self._tracing)
        return self._cycle(entry)

    @property
    def _slice(self) -> int:
        return max(16, SLICE_MICROSECONDS // (60 + len(self.view.table) // 25))

    def _timed_cycle(self, entry: Entry, told: Callable[[float], None]) -> Promise | None:
        began = time.perf_counter()
        made = self._cycle(entry)
        if self._begun is None:
            told(time.perf_counter() - began)
        return made

    def _traced_cycle(self, entry: Entry, tracing: Tracing) -> Promise | None:
        with tracing.following(entry):
            return self._cycle(entry)

    def _cycle(self, entry: Entry) -> Promise | None:
        """A promise that is to be written; None: there is none, or its plugins see to it."""
        profile = self._profiles.get(entry.request.profile)
        if profile is None:
            missing = f"there is no profile {entry.request.profile}"
            self._wait(entry, Decision(entry.request.key, message=missing, retry_on=ANYTHING))
            return None
        if self._busy >= CYCLES_MOST and (profile.consults or profile.permits or not profile.batches(entry.request)):
            self._queue.back_off(entry, now=self._clock.monotonic())
            return None
        if entry.request.member is not None:
            gang_members = self._gang_cycle.gang_members(entry, profile)
            if gang_members is not None:
                self._gang = entry, profile, gang_members
                return None
        if profile.consults and entry.consulted is None:
            self._inquire_first(entry, profile)
            return None
        made = self._deciding.begin(entry, profile)
        if isinstance(made, Begun):
            self._begun = made
            return None
        return self._conclude(entry, profile, made)

    async def _finish(self, begun: Begun) -> None:
        """The rest of a cycle that takes longer: no other begins meanwhile."""
        decision = await self._deciding.finish(begun)
        if decision is None:
            return
        if self.timed is not None:
            self.timed(begun.seconds)
        with self._deciding.following(begun.entry):
            promise = self._conclude(begun.entry, begun.profile, decision)
        if promise is not None:
            self._to_write.append(promise)

    def _conclude(self, entry: Entry, profile: Profile, decision: Decision) -> Promise | None:
        entry.consulted = None
        if decision.node and unasked(profile, decision.state):
            self._queue.back_off(entry, now=self._clock.monotonic())
            return None
        self._note(entry, profile, decision)
        if decision.node:
            return self._take(entry, profile, decision)
        if decision.fault:
            self._fault(entry, decision.message)
        else:
            self._wait(entry, decision)
        return None

    def _note(self, entry: Entry, profile: Profile, decision: Decision) -> None:
        self._measures.decided(profile.name, decision)
        self._journal.note(entry, profile, decision, self.view.table)
        if self._tracing is not None:
            self._tracing.decided(entry, decision)

    def _inquire_first(self, entry: Entry, profile: Profile) -> None:
        self._busy += 1
        self._queue.hold(entry)
        self._to_ask.append((entry, profile))

    def _take(self, entry: Entry, profile: Profile, decision: Decision) -> Promise | None:
        """Counted, reserved, permitted; the last steps of the scheduling cycle."""
        promise = self._promise(entry, profile, decision)
        return promise if promise is None or promise.context is None else self._admit(promise, promise.context)

    def _promise(self, entry: Entry, profile: Profile, decision: Decision) -> Promise | None:
        if entry.request.member is not None:
            self._journal.note(entry, profile, decision, self.view.table)
        context = None
        if not (profile.plain and profile.batches(entry.request)) or entry.request.member is not None:
            context = Context(profile, decision.request or entry.request, decision.node, decision.state)
        chosen = decision.request.shape if decision.request is not None and decision.request.shape.variant else None
        promise = self.view.promise(entry, decision.node, decision.relaxed, context, chosen)
        if promise is not None and decision.displaces:
            self._nominations.displace(decision.node, entry.request.priority)
        if promise is not None and context is not None:
            self._gangs.promised(entry.request)
        return promise

    def _admit(self, promise: Promise, context: Context) -> Promise | None:
        self._outcomes.reserving(promise)
        try:
            self.watchdog.run(lambda: run_reserve(context, self.watchdog))
            permission = self.watchdog.run(lambda: run_permits(context, self.watchdog))
        except (PluginFault, Overrun) as fault:
            self._outcomes.abort(promise, self.watchdog.told(fault))
            return None
        if permission.denied_by is not None:
            self._outcomes.deny(promise, permission.denied_by.name, permission.why)
            return None
        if permission.waits or not context.profile.batches(promise.entry.request):
            seat = self._room.enter(context.request, context.node, permission.waits) if permission.waits else None
            self._busy += 1
            self._outcomes.parties.begin(promise)
            self._to_start.append((promise, seat))
            return None
        return promise

    def _write_whole(self, promises: Sequence[Promise]) -> None:
        self._to_write_whole.append(promises)
        self._wake.set()

    def _wait(self, entry: Entry, decision: Decision) -> None:
        now = self._clock.monotonic()
        wake_at = None if decision.again is None else now + decision.again
        if self._tracing is not None:
            self._tracing.refused(entry, decision.reason, decision.message)
        self._queue.put_back(
            entry,
            now=now,
            retry_on=decision.retry_on,
            blamed=decision.blamed,
            by_node=decision.by_node,
            wake_at=wake_at,
        )
        if not self._nominations.hold((entry, decision)):
            told = decision.reason, decision.message, decision.nominated
            self._reasons.tell(entry.request.key, entry.uid, *told)

    def _fault(self, entry: Entry, message: str) -> None:
        if self._tracing is not None:
            self._tracing.refused(entry, "PluginFault", message)
        self._queue.back_off(entry, now=self._clock.monotonic())
        self._reasons.tell(entry.request.key, entry.uid, "PluginFault", message)

    def _kept_out(self, entry: Entry, why: str | PluginFault) -> None:
        reason = "PluginFault" if isinstance(why, PluginFault) else "Gated"
        if self._tracing is not None:
            self._tracing.refused(entry, reason, str(why))
        self._reasons.tell(entry.request.key, entry.uid, reason, str(why))
        if isinstance(why, PluginFault):
            self._wake.set()  # It pauses, and the pause has an end.

    async def _ask_about(self, entry: Entry, profile: Profile) -> None:
        try:
            with self._step(entry)("Consult", ", ".join(each.name for each in profile.consults)):
                answers = await self._consulting.consult(
                    profile, entry.request, self.view.table.snapshot(), self._clock.now()
                )
        except (PluginFault, Overrun) as fault:
            if self._queue.drop_held(entry):
                self._fault(entry, self.watchdog.told(fault))
        else:
            self._queue.release(entry, answers)
        finally:
            self._busy -= 1
            self._wake.set()

    def _step(self, entry: Entry) -> Step:
        return partial(self._tracing.step, entry) if self._tracing is not None else unseen

    # The binding cycle.

    async def _binding_cycle(self, promise: Promise, seat: PermitSlot | None) -> None:
        assert promise.context is not None
        try:
            end = await self._binding.run(promise.context, seat, self._step(promise.entry))
        except PluginFault as fault:
            if isinstance(fault.__cause__, NotBound):
                self._outcomes.failed(promise)
            else:
                self._outcomes.abort(promise, str(fault))
        else:
            await self._end(promise, end)
        finally:
            self._busy -= 1
            self._wake.set()

    async def _end(self, promise: Promise, end: Denied | str) -> None:
        if isinstance(end, Denied):
            self._outcomes.deny(promise, end.plugin, end.why)
            return
        if end == DEFAULT_BINDER or await self._is_bound(promise):
            self._outcomes.bound(promise)
        else:
            self._outcomes.abort(promise, f"the plugin {end} says that it has bound it, and it is not bound")

    async def _is_bound(self, promise: Promise) -> bool:
        stored = await stored_now(self._store, self._clock, promise.key)
        same = isinstance(stored, Instance) and stored.meta.uid == promise.instance.meta.uid
        return same and stored is not None and stored.node == promise.node

    def _gone(self, promise: Promise) -> None:
        self._room.reject(promise.key, "", "it is gone, or told to stop")
