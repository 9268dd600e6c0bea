"""One instance on this node: looks, decides with `sync`, writes down, reports, acts, looks again."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

import msgspec

from mandor.agent.discovery import NO_DISCOVERY, Discovery
from mandor.agent.fetch import Fetch
from mandor.agent.identity import IdentityKeeper
from mandor.agent.launch import pick_engine
from mandor.agent.live_file_delivery import Delivery
from mandor.agent.live_files import LiveFileKeeper
from mandor.agent.metrics import AgentMetrics
from mandor.agent.order import Entry, Memory, Order
from mandor.agent.ports import ports_of, publishes
from mandor.agent.probe_runner import ProbeRunner
from mandor.agent.probes import Ask
from mandor.agent.resource_admission import AdmissionResult
from mandor.agent.starts import ConcurrencyLimit, RevocableTask
from mandor.agent.status import describe, failed
from mandor.agent.sync import Action, Decision, Remove, Start, Stop, live, sync
from mandor.agent.sync_inputs import SyncInputs
from mandor.agent.tracing import Tracing
from mandor.agent.tracing import starting as starting_task
from mandor.agent.vault import Vault, names_of
from mandor.agent.volumes import PreparedVolumes
from mandor.engines.base import Engine, Observed, Unit, UnitPhase
from mandor.errors import Forbidden, MandorError, NotFound, PortTaken, Unavailable, Unsupported
from mandor.lib.backoff import Backoff
from mandor.lib.bounded import bounded
from mandor.lib.clock import Clock, wait_event
from mandor.lib.logs import about
from mandor.lib.quantity import NEVER
from mandor.lib.tasks import side_by_side
from mandor.model.instance import EVICTED, PORT_TAKEN, REFUSED, Instance, InstanceStatus
from mandor.model.node import Capabilities
from mandor.telemetry.span import within

log = logging.getLogger(__name__)

BACKOFF = Backoff(1, 60, jitter=0.2)
TURN_SECONDS = 15.0
PROGRESS_SECONDS = 2.0
SOON_SECONDS = 0.05
PATIENCE_SECONDS = 120.0
"""An engine that has not ended or removed a unit by then, beyond the grace, is asked again."""
FORBIDDEN = "Forbidden"
"""Reason of an instance whose tasks its namespace no longer allows: none of them is started again."""
T = TypeVar("T")


class Surroundings(Protocol):
    """What a worker needs of its agent."""

    clock: Clock
    fetch: Fetch
    vault: Vault
    identities: IdentityKeeper | None
    live_files: LiveFileKeeper | None
    starts: ConcurrencyLimit
    measures: AgentMetrics
    quick_seconds: float
    otlp: str
    ask: Ask
    tracing: Tracing | None

    @property
    def settled(self) -> bool: ...
    @property
    def silence(self) -> float: ...
    @property
    def away(self) -> float: ...
    def engine(self, name: str) -> Engine: ...
    def engines(self) -> Mapping[str, Capabilities]: ...
    def look(self, uid: str, engine: str) -> tuple[str, tuple[Observed, ...] | None]:
        """(the engine that has it, its units); without an engine, wherever it is found."""

    def looked(self, engine: str) -> bool:
        """It was asked what it has, whether it answered or not; without an engine, all were."""

    async def fresh(self, engine: str) -> None: ...
    def ask_room(self, order: Order, *, begun: bool) -> AdmissionResult: ...
    def leave_room(self, uid: str, *, over: bool) -> None: ...
    async def prepare(self, order: Order, engine: str, *, begun: bool) -> PreparedVolumes: ...
    def user_on_node(self, engine: str, user: str | int | None) -> str | int | None:
        """Return the owner, on this node, of files that a task of the engine with this user reads."""

    async def know_names(self, order: Order) -> Discovery: ...
    def taken_ports(self, order: Order) -> str:
        """Why it cannot have its ports of this node; empty: it can."""

    def port_taken(self, order: Order, port: int) -> None: ...
    @property
    def address(self) -> str:
        """This node's."""

    async def finish_log(self, unit: Unit) -> None:
        """Somebody may still read it: its log goes with it."""

    async def keep(self, entry: Entry) -> None: ...
    async def forget(self, uid: str) -> None: ...
    def report(self, order: Order, before: InstanceStatus, status: InstanceStatus) -> None: ...
    def record_secret_change(self, order: Order, message: str, *, failed: bool = False) -> None: ...


class Worker:
    """Its actions come one after the other; different instances have different workers."""

    def __init__(self, entry: Entry, around: Surroundings) -> None:
        self.uid = entry.order.uid
        self.order = entry.order
        self.memory = entry.memory
        self.gone = False
        self._around = around
        self.status = entry.order.instance.status
        """As last described."""
        self._kept: Entry | None = entry if entry.order.template is not None else None
        self._known: set[Unit] = set()
        self._refusal = ""
        self._trouble: Exception | None = None
        self._news = asyncio.Event()
        self._must_end = False
        self._turned = asyncio.Event()
        """What is being started has, or it must end."""
        self._last: tuple[Action, ...] = ()
        self._repeats = 0
        self._probes = ProbeRunner(around.clock, self.poke, around.ask)
        self._delivery = Delivery(self, around)
        self.trace = around.tracing.ordered(self.order.instance) if around.tracing is not None else None
        """Its part of a trace; None: it is in none."""

    def poke(self) -> None:
        """Something may have changed."""
        self._news.set()

    def told(self, instance: Instance, cluster: str, epoch: int) -> None:
        """The same order again, or with news; telling it twice changes nothing."""
        self.gone = False
        if self.memory.held:
            self.memory = msgspec.structs.replace(self.memory, held="")
            self.poke()
        if instance.status.phase is self.status.phase:
            self.status = instance.status
        spec_changed = instance.spec != self.order.instance.spec
        self.order = msgspec.structs.replace(self.order, instance=instance, cluster=cluster, epoch=epoch)
        self._must_end = False
        if instance.spec.stop is not None:
            self._end()
        if spec_changed or self._kept is None or (self._kept.order.cluster, self._kept.order.epoch) != (cluster, epoch):
            self.poke()

    def _end(self) -> None:
        """A start that is under way is broken off."""
        self._must_end = True
        self._turned.set()

    def dismiss(self) -> None:
        """Nobody wants it any more."""
        self.gone = True
        self.memory = msgspec.structs.replace(self.memory, held="")
        self._end()
        self.poke()

    def evict(self, message: str, *, hard: bool) -> None:
        """The host needs what it uses; `hard`: now."""
        if self.memory.ending is None:
            ending = failed(EVICTED, message, None)
            self.memory = msgspec.structs.replace(self.memory, ending=ending, at_once=hard)
            self._end()
            self.poke()

    def hold(self, why: str) -> None:
        if self.memory.held != why:
            log.warning("%s (%s) is held: %s", self.order.name, self.uid, why)
            self.memory = msgspec.structs.replace(self.memory, held=why)
            self.poke()

    async def run(self) -> None:
        """Until nothing of the instance is left."""
        meta = self.order.instance.meta
        about(namespace=meta.namespace, workload=self.order.instance.spec.workload, instance=meta.name, uid=self.uid)
        failures = 0
        try:
            while True:
                self._news.clear()
                try:
                    pause = await self._step()
                    failures, self._trouble = 0, None
                except Exception as error:
                    failures += 1
                    pause = BACKOFF.pause(failures)
                    self._trouble = error
                    # An engine from elsewhere may raise anything; one instance must not end the others.
                    expected = isinstance(error, MandorError | OSError | TimeoutError)
                    shown = str(error) or type(error).__name__
                    log.warning("%s: %s; again in %.0fs", self.order.name, shown, pause, exc_info=not expected)
                if pause is not None and pause < 0:
                    return
                await wait_event(self._around.clock, pause, self._news)
        finally:
            if self.trace is not None:
                self.trace.end()
            await self._probes.close()

    async def _step(self) -> float | None:
        """Seconds until the next look; None: when there is news; negative: never again."""
        if not self._around.settled and not self._around.looked(self.memory.engine):
            return None  # There is nothing to see, and nothing to be said; whoever changes that, wakes everybody.
        with self._in_trace():
            if not await self._prepare():
                return None
            inputs = await self._inputs()
        decision = sync(self.order, self.memory, inputs, self._around.clock.now())
        self._remember(inputs.units or ())
        await self._write_down(decision)
        self._tell(decision)
        ports = ports_of(self.order, published=inputs.published)
        self._probes.sync(self.order, self.memory, self._nursed(inputs.units), self._around, ports)
        if decision.forget:
            await self._around.forget(self.uid)
            self._around.leave_room(self.uid, over=True)
            return -1
        if decision.actions:
            self._begin_restart_trace(decision.actions)
            with self._in_trace():
                await self._act(decision.actions)
            return self._pause_after(decision)
        self._last, self._repeats = (), 0
        pause = await self._delivery.sync(inputs.units or ())
        due = None if decision.wake_at is None else max(0.0, decision.wake_at - self._around.clock.now())
        return min((each for each in (pause, due) if each is not None), default=None)

    def _in_trace(self) -> AbstractContextManager[object]:
        return nullcontext() if self.trace is None or self.trace.over else within(self.trace.span)

    def _begin_restart_trace(self, actions: Sequence[Action]) -> None:
        tracing = self._around.tracing
        if tracing is None or (self.trace is not None and not self.trace.over):
            return
        if any(isinstance(each, Start) for each in actions):
            self.trace = tracing.again(self.order.instance)

    def _remember(self, units: Sequence[Observed]) -> None:
        """Who was seen; of each task only the latest can still be missed."""
        known = self._known | {each.unit for each in units}
        self._known = {unit for unit in known if unit.attempt >= self.memory.task(unit.task).attempt}

    def _nursed(self, units: Sequence[Observed] | None) -> Sequence[Observed]:
        if self.memory.ending is not None or self.gone:
            return ()
        return [each for each in units or () if each.phase is UnitPhase.RUNNING]

    async def _prepare(self) -> bool:
        """Read the release if need be; False: there is nothing to do before there is news."""
        order = self.order
        wanted = not (self.gone or order.instance.spec.stop or order.instance.status.phase.over or self.memory.ending)
        if not wanted:
            return True
        if order.template is not None:
            await self._ensure_namespace_view()
            return True
        fetch = self._around.fetch
        try:
            template, supervision = await fetch.template_and_supervision(order.instance)
            namespace_view = await fetch.namespace_view(order.instance)
        except NotFound as error:
            self._refusal = str(error)
            return True
        if supervision is None:
            # Without its workload it will be told to stop soon; until then nobody can say how to look after it.
            raise NotFound(f"its workload {order.instance.spec.workload} has no such group any more, or is gone")
        self.order = msgspec.structs.replace(
            self.order, template=template, supervision=supervision, namespace_view=namespace_view
        )
        return True

    async def _ensure_namespace_view(self) -> None:
        """Read the namespace of an order that an older agent wrote down."""
        if self.order.namespace_view is None and self._around.settled:
            namespace_view = await self._around.fetch.namespace_view_quickly(
                self.order.instance, self._around.quick_seconds
            )
            self.order = msgspec.structs.replace(self.order, namespace_view=namespace_view)

    async def _inputs(self, *, reading: bool = False) -> SyncInputs:
        """`reading`: read secrets, names and identities even if all tasks run."""
        around = self._around
        engine, units = around.look(self.uid, self.memory.engine)
        refusal, wait = self._refusal, ""
        begun = bool(self.memory.tasks or units)
        if engine and not self.memory.engine:
            self.memory = msgspec.structs.replace(self.memory, engine=engine)
        template = self.order.template
        if template is not None and not self.memory.engine and units is not None:
            chosen, refusal = pick_engine(template, around.engines())
            if chosen:
                self.memory = msgspec.structs.replace(self.memory, engine=chosen)
                _, units = around.look(self.uid, chosen)
                if units is None:
                    wait, units = f"its engine {chosen} does not answer", ()
        forbidden = self._forbidden()
        if forbidden and not begun:
            refusal = refusal or forbidden
        if template is not None and not refusal and not self.memory.over and not self.gone:
            answer = around.ask_room(self.order, begun=begun)
            refusal, wait = answer.refusal, wait or answer.wait
        refusal_reason = REFUSED
        if template is not None and template.ports and not (begun or refusal or wait or self.memory.over or self.gone):
            refusal = around.taken_ports(self.order)
            refusal_reason = PORT_TAKEN if refusal else refusal_reason
        prepared = PreparedVolumes()
        if template is not None and template.volumes and not (refusal or self.memory.over or self.gone):
            prepared = await around.prepare(self.order, self.memory.engine, begun=begun)
            refusal = prepared.refusal
        known = NO_DISCOVERY
        wanted = not (refusal or self.memory.over or self.gone) and (reading or self._may_start(units))
        if wanted:
            known = await around.know_names(self.order)
        secrets: Mapping[str, str] = {}
        missing, missing_reason = (forbidden, FORBIDDEN) if forbidden else (prepared.missing, "VolumeMissing")
        if wanted and template is not None and names_of(self.order):
            try:
                secrets, self.order = await around.vault.read(self.order)
            except NotFound as error:
                missing, missing_reason = missing or str(error), "SecretMissing"
            except Unavailable as error:
                missing, missing_reason = missing or str(error), "SecretUnavailable"
        identities: Mapping[str, str] = {}
        if wanted and around.identities is not None and _identified(self.order):
            try:
                identities = await around.identities.ready(self.order)
            except (NotFound, Forbidden, Unsupported) as error:
                missing, missing_reason = missing or f"no identity is issued: {error}", "IdentityMissing"
        if self._ended(units):
            await self._refresh_supervision()
        return SyncInputs(
            units=units,
            down=self._down() if units is None else "",
            known=frozenset(self._known),
            probe_results=self._probes.probe_results,
            status=self.status,
            gone=self.gone,
            refusal=refusal,
            refusal_reason=refusal_reason,
            published=self._published,
            host=around.address,
            otlp=around.otlp,
            names=known,
            mounts_hosts="hosts" in self._extras,
            users="user" in self._extras,
            wait=wait,
            sources=prepared.sources,
            missing=missing,
            missing_reason=missing_reason,
            secrets=secrets,
            identities=identities,
            live_files=around.live_files.folder if around.live_files is not None else "",
            extras=self._extras,
            settled=around.settled,
            silence=around.silence,
            away=around.away,
            trouble=_words(self._trouble),
        )

    async def read_all(self) -> SyncInputs:
        return await self._inputs(reading=True)

    def _forbidden(self) -> str:
        """What its namespace does not allow, should the control plane have admitted it; empty: nothing."""
        template = self.order.template
        if template is None or not self.memory.engine:
            return ""
        found = next(self.order.allowance.refusals(template, self.memory.engine), None)
        return "" if found is None else found.message

    def _down(self) -> str:
        """Why its engine does not answer; empty: nobody knows that it is down."""
        name = self.memory.engine
        engine = self._around.engines().get(name)
        if not name or (engine is not None and engine.up):
            return ""
        why = f": {engine.message}" if engine is not None and engine.message else ""
        return f"{name} is down, and it is as it was last seen{why}"

    @property
    def _extras(self) -> frozenset[str]:
        known = self._around.engines().get(self.memory.engine)
        return known.extras if known is not None else frozenset()

    @property
    def _published(self) -> bool:
        return publishes(self.order, self.memory.engine, self._around.engines())

    def _may_start(self, units: Sequence[Observed] | None) -> bool:
        """Not everything of it runs yet."""
        running = sum(each.phase is UnitPhase.RUNNING for each in units or ())
        return self.order.template is not None and running < len(self.order.template.tasks)

    def _ended(self, units: Sequence[Observed] | None) -> bool:
        """Some unit's end is about to be judged."""
        if units is None or self.gone or self.memory.ending is not None:
            return False
        return any(
            each.phase is UnitPhase.EXITED
            and each.unit.attempt == self.memory.task(each.unit.task).attempt
            and not self.memory.task(each.unit.task).completed
            for each in units
        )

    async def _refresh_supervision(self) -> None:
        try:
            supervision = await self._around.fetch.supervision_quickly(self.order.instance, self._around.quick_seconds)
        except MandorError as error:
            log.warning("%s: its restart policy cannot be read: %s", self.order.name, error)
            return
        if supervision is not None:
            self.order = msgspec.structs.replace(self.order, supervision=supervision)
        namespace_view = await self._around.fetch.namespace_view_quickly(
            self.order.instance, self._around.quick_seconds
        )
        if namespace_view is not None:
            self.order = msgspec.structs.replace(self.order, namespace_view=namespace_view)
        if self.status.images:
            # It was started before its release had digests: its next start is by them.
            template = await self._around.fetch.template_quickly(self.order.instance, self._around.quick_seconds)
            self.order = msgspec.structs.replace(self.order, template=template or self.order.template)

    async def _write_down(self, decision: Decision) -> None:
        self.memory = decision.memory
        entry = Entry(order=self.order, memory=self.memory)
        if decision.forget or self.order.template is None or not _differs(entry, self._kept):
            return
        try:
            await self._around.keep(entry)
            self._kept = entry
        except OSError as error:
            if any(isinstance(action, Start) for action in decision.actions):
                raise  # What is not written down is not begun.
            log.error("%s: its order cannot be written down: %s", self.order.name, error)

    async def remember(self, memory: Memory) -> None:
        self.memory = memory
        await self._around.keep(entry := Entry(order=self.order, memory=memory))
        self._kept = entry

    def _tell(self, decision: Decision) -> None:
        if self.memory.over:
            self._around.leave_room(self.uid, over=True)
        elif self.memory.ending is not None or self.gone:
            self._around.leave_room(self.uid, over=False)
        # Before the first list nothing is said: what is stored may be what would be said.
        if decision.status is not None and self._around.settled:
            before = self.status
            self.status = decision.status
            if self.trace is not None:
                self.trace.described(decision.status)
            self._around.report(self.order, before, decision.status)

    async def _act(self, actions: Sequence[Action]) -> None:
        """Stops together, then the rest in order; afterwards the engine is looked at again."""
        engine = self._around.engine(self.memory.engine)
        stops = [action for action in actions if isinstance(action, Stop)]
        try:
            if stops:
                patience = max(each.grace_seconds for each in stops) + PATIENCE_SECONDS
                await bounded(patience, side_by_side([self._stop(engine, each) for each in stops]))
            for action in actions:
                if isinstance(action, Remove):
                    await self._around.finish_log(action.unit)
                    removing = self._around.measures.call(engine.name, "remove", engine.remove(action.unit))
                    await bounded(PATIENCE_SECONDS, removing)
                elif isinstance(action, Start):
                    await self._start(engine, action)
        except Exception:
            await self._around.fresh(self.memory.engine)
            raise
        await self._around.fresh(self.memory.engine)

    async def _stop(self, engine: Engine, action: Stop) -> None:
        stopping = engine.stop(action.unit, grace_seconds=action.grace_seconds)
        await self._around.measures.call(engine.name, "stop", stopping)

    async def _start(self, engine: Engine, action: Start) -> None:
        """Followed to its end, however long it takes, unless the instance must end or may not run alone any longer."""
        starting = asyncio.ensure_future(self._in_turn(engine, action))
        starting.add_done_callback(lambda _: self._turned.set())
        try:
            while not starting.done() and not self._must_end and self._heard():
                alone = max(SOON_SECONDS, self.order.supervision.stop_after - self._around.silence)
                self._turned.clear()
                await wait_event(self._around.clock, min(PROGRESS_SECONDS, alone), self._turned)
                if not starting.done() and not self._must_end:
                    await self._tell_progress()
            if starting.done():
                await starting
                self._known.add(action.unit)
        except PortTaken as error:
            if action.unit.attempt > 1 and not isinstance(self._trouble, PortTaken):
                raise  # Its own earlier attempt may still be letting go of it.
            self._around.port_taken(self.order, error.port)
            self.memory = msgspec.structs.replace(self.memory, ending=failed(PORT_TAKEN, error.message, None))
        except MandorError as error:
            if error.retry:
                raise
            why = failed("StartFailed", f"task {action.unit.task} cannot start: {error}", None)
            self.memory = msgspec.structs.replace(self.memory, ending=why)
        finally:
            if not starting.done():
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)

    def _heard(self) -> bool:
        """It may run as far as the control plane's silence goes."""
        return self._around.silence < self.order.supervision.stop_after

    async def _tell_progress(self) -> None:
        """What a long start waits for, where the engine says so; one that does not answer holds nobody up."""
        try:
            async with asyncio.timeout(PROGRESS_SECONDS):
                await self._around.fresh(self.memory.engine)
        except TimeoutError:
            return
        inputs = await self._inputs()
        if any(each.phase is UnitPhase.STARTING and each.message for each in inputs.units or ()):
            self._tell(
                Decision(self.memory, status=describe(self.order, self.memory, inputs, self._around.clock.now()))
            )

    async def _in_turn(self, engine: Engine, action: Start) -> None:
        """So many at once; one that takes long gives its turn to others and goes on."""
        if self._around.identities is not None and _identified(self.order):
            user = self._around.user_on_node(engine.name, action.launch.user)
            await self._around.identities.give(self.order, action.unit.task, user)
        if action.live_files:
            await self._delivery.write(action.unit.task, action.launch, action.live_files)
        with starting_task(self.order, action.unit, engine.name):
            async with self._around.starts.take(TURN_SECONDS):
                begin = engine.start(action.unit, action.launch)
                leashed = self.order.supervision.stop_after != NEVER
                work = RevocableTask(begin, self._heard, "it may not run alone any longer") if leashed else begin
                await self._around.measures.call(engine.name, "start", work)

    def _pause_after(self, decision: Decision) -> float:
        """At once, unless the same is done again and again and the engine does not move."""
        self._repeats = self._repeats + 1 if decision.actions == self._last else 0
        self._last = decision.actions
        return BACKOFF.pause(self._repeats) if self._repeats else 0.0

    @property
    def leaves(self) -> bool:
        """It is to end, and something of it still runs."""
        return (self.gone or self.memory.ending is not None) and self.alive

    @property
    def alive(self) -> bool:
        """Something of it runs, as far as the engine says."""
        _, units = self._around.look(self.uid, self.memory.engine)
        return bool(live(units or ()))


def _identified(order: Order) -> bool:
    """Return whether a task of the instance has an identity."""
    return order.template is not None and any(each.identity is not None for each in order.template.tasks.values())


def _differs(entry: Entry, kept: Entry | None) -> bool:
    """Statuses come and go and are not written down: the engine and the memory know them."""
    if kept is None:
        return True
    return entry.memory != kept.memory or _told(entry.order) != _told(kept.order)


def _told(order: Order) -> tuple[object, ...]:
    return order.instance.spec, order.template, order.namespace_view, order.supervision, order.cluster, order.epoch


def fresh_entry(instance: Instance, cluster: str, epoch: int) -> Entry:
    """For an order that is not in the journal; its last status tells which engine had it, if any."""
    order = Order(instance=instance, cluster=cluster, epoch=epoch)
    return Entry(order=order, memory=Memory(engine=instance.status.engine))


def _words(trouble: Exception | None) -> tuple[str, str]:
    """A reason and a message for the status; none without trouble."""
    if trouble is None:
        return "", ""
    return type(trouble).__name__, str(trouble)[:500]
