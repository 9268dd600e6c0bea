"""Runs one instance on this node: reads its state, decides with `sync`, saves, reports, acts, and repeats."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import msgspec

from mandor.agent.discovery import NO_DISCOVERY
from mandor.agent.launch import pick_engine
from mandor.agent.live_file_delivery import Delivery, DeliveryServices
from mandor.agent.networks import attach
from mandor.agent.node_engines import NodeEngines
from mandor.agent.order import Entry, Memory, Order
from mandor.agent.ports import ports_of, publishes
from mandor.agent.probe_runner import ProbeRunner
from mandor.agent.services import AgentServices, InstanceResources, Supervisor
from mandor.agent.starts import RevocableTask
from mandor.agent.status import describe, failed
from mandor.agent.sync import Action, Decision, Remove, Start, Stop, live, sync
from mandor.agent.sync_inputs import MissingDependency, SyncInputs
from mandor.agent.tracing import starting as starting_task
from mandor.agent.vault import names_of
from mandor.agent.volumes import PreparedVolumes
from mandor.engines.base import Engine, Observed, Unit, UnitPhase
from mandor.errors import Forbidden, MandorError, NotFound, PortTaken, Unavailable, Unsupported
from mandor.lib.backoff import Backoff
from mandor.lib.bounded import bounded
from mandor.lib.clock import wait_event
from mandor.lib.logs import about
from mandor.lib.quantity import NEVER
from mandor.lib.tasks import side_by_side
from mandor.model.instance import EVICTED, PORT_TAKEN, REFUSED, Instance
from mandor.telemetry.span import within

log = logging.getLogger(__name__)

BACKOFF = Backoff(1, 60, jitter=0.2)
SLOT_SECONDS = 15.0
"""Longest time that one start holds a slot of `AgentServices.starts`."""
PROGRESS_SECONDS = 2.0
"""Interval between progress reports of a start."""
SOON_SECONDS = 0.05
"""Shortest wait in seconds before the control plane's silence is checked again."""
ENGINE_SECONDS = 120.0
"""Timeout of a stop (beyond its grace) or remove call to an engine; the call is then repeated."""
FORBIDDEN = "Forbidden"
"""Reason of an instance whose tasks its namespace no longer allows: none of them is started again."""


class Worker:
    """Makes one instance match its order. Actions run one after the other; each instance has its own worker."""

    def __init__(
        self,
        entry: Entry,
        services: AgentServices,
        engines: NodeEngines,
        resources: InstanceResources,
        supervisor: Supervisor,
    ) -> None:
        self.uid = entry.order.uid
        self.order = entry.order
        self.memory = entry.memory
        self.gone = False
        self._services, self._engines, self._resources, self._supervisor = services, engines, resources, supervisor
        self._clock = services.clock
        self.status = entry.order.instance.status
        """The status that was described last."""
        self._saved: Entry | None = entry if entry.order.template is not None else None
        self._known: set[Unit] = set()
        self._refusal = ""
        self._error: Exception | None = None
        self._news = asyncio.Event()
        self._must_end = False
        self._start_settled = asyncio.Event()
        """Set when the start under way has ended, or must end."""
        self._last: tuple[Action, ...] = ()
        self._repeats = 0
        self._probes = ProbeRunner(self._clock, self.wake, services.run_probe)
        record = supervisor.record_secret_change
        self._delivery = Delivery(self, DeliveryServices(self._clock, resources.live_files, engines, record))
        self.trace = services.tracing.begin(self.order.instance) if services.tracing is not None else None
        """The spans of the instance; None: it is not part of a trace."""

    def wake(self) -> None:
        """Check the instance again: something may have changed."""
        self._news.set()

    def update(self, instance: Instance, cluster: str, epoch: int) -> None:
        """Take the order as the control plane has it now; repeating the same order changes nothing."""
        self.gone = False
        if self.memory.held:
            self.memory = msgspec.structs.replace(self.memory, held="")
            self.wake()
        if instance.status.phase is self.status.phase:
            self.status = instance.status
        spec_changed = instance.spec != self.order.instance.spec
        self.order = msgspec.structs.replace(self.order, instance=instance, cluster=cluster, epoch=epoch)
        self._must_end = False
        if instance.spec.stop is not None:
            self._cancel_start()
        saved = self._saved
        if spec_changed or saved is None or (saved.order.cluster, saved.order.epoch) != (cluster, epoch):
            self.wake()

    def _cancel_start(self) -> None:
        """Cancel the start under way, if there is one."""
        self._must_end = True
        self._start_settled.set()

    def withdraw(self) -> None:
        """Stop and remove the instance: its order was withdrawn."""
        self.gone = True
        self.memory = msgspec.structs.replace(self.memory, held="")
        self._cancel_start()
        self.wake()

    def evict(self, message: str, *, hard: bool) -> None:
        """Stop the instance because the node is short of a resource; `hard`: without its grace period."""
        if self.memory.ending is None:
            ending = failed(EVICTED, message, None)
            self.memory = msgspec.structs.replace(self.memory, ending=ending, at_once=hard)
            self._cancel_start()
            self.wake()

    def hold(self, reason: str) -> None:
        """Leave the instance as it is until the control plane lists it again, or the node may forget it."""
        if self.memory.held != reason:
            log.warning("instance %s (%s) is held: %s", self.order.name, self.uid, reason)
            self.memory = msgspec.structs.replace(self.memory, held=reason)
            self.wake()

    async def run(self) -> None:
        """Run until nothing of the instance is left."""
        meta = self.order.instance.meta
        about(namespace=meta.namespace, workload=self.order.instance.spec.workload, instance=meta.name, uid=self.uid)
        failures = 0
        try:
            while True:
                self._news.clear()
                try:
                    pause = await self._step()
                    failures, self._error = 0, None
                except Exception as error:
                    failures += 1
                    pause = BACKOFF.pause(failures)
                    self._error = error
                    # A third-party engine may raise anything; one instance must not end the others.
                    expected = isinstance(error, MandorError | OSError | TimeoutError)
                    shown = str(error) or type(error).__name__
                    log.warning(
                        "instance %s: %s; retry in %.0f s", self.order.name, shown, pause, exc_info=not expected
                    )
                if pause is not None and pause < 0:
                    return
                await wait_event(self._clock, pause, self._news)
        finally:
            if self.trace is not None:
                self.trace.end()
            await self._probes.close()

    async def _step(self) -> float | None:
        """Return the seconds until the next step; None: when woken; negative: never, nothing is left."""
        if not self._supervisor.settled and not self._engines.listed(self.memory.engine):
            return None  # Neither orders nor units are known; both changes wake all workers.
        with self._in_trace():
            if not await self._prepare():
                return None
            inputs = await self._inputs()
        decision = sync(self.order, self.memory, inputs, self._clock.now())
        self._record_units(inputs.units or ())
        await self._save(decision)
        self._report(decision)
        ports = ports_of(self.order, published=inputs.published)
        self._probes.sync(self.order, self.memory, self._probed_units(inputs.units), self._engines, ports)
        if decision.forget:
            await self._supervisor.forget(self.uid)
            self._supervisor.release(self.uid, over=True)
            return -1
        if decision.actions:
            self._begin_restart_trace(decision.actions)
            with self._in_trace():
                await self._act(decision.actions)
            return self._pause_after(decision)
        self._last, self._repeats = (), 0
        pause = await self._delivery.sync(inputs.units or ())
        due = None if decision.wake_at is None else max(0.0, decision.wake_at - self._clock.now())
        return min((each for each in (pause, due) if each is not None), default=None)

    def _draining(self) -> bool:
        """Return whether the instance has a stop order and may still get new connections of services."""
        names = self._resources.names
        if names is None or self.order.instance.spec.stop is None or self.memory.at_once or self.memory.over:
            return False
        return not names.drains.drained(self.order, self.status)

    def _in_trace(self) -> AbstractContextManager[object]:
        return nullcontext() if self.trace is None or self.trace.over else within(self.trace.span)

    def _begin_restart_trace(self, actions: Sequence[Action]) -> None:
        tracing = self._services.tracing
        if tracing is None or (self.trace is not None and not self.trace.over):
            return
        if any(isinstance(each, Start) for each in actions):
            self.trace = tracing.begin_restart(self.order.instance)

    def _record_units(self, units: Sequence[Observed]) -> None:
        """Record the units that the engine listed; of each task only the latest attempt can vanish."""
        known = self._known | {each.unit for each in units}
        self._known = {unit for unit in known if unit.attempt >= self.memory.task(unit.task).attempt}

    def _probed_units(self, units: Sequence[Observed] | None) -> Sequence[Observed]:
        if self.memory.ending is not None or self.gone:
            return ()
        return [each for each in units or () if each.phase is UnitPhase.RUNNING]

    async def _prepare(self) -> bool:
        """Read the release, workload and namespace if the order lacks them."""
        order = self.order
        wanted = not (self.gone or order.instance.spec.stop or order.instance.status.phase.over or self.memory.ending)
        if not wanted:
            return True
        if order.template is not None:
            await self._read_missing_namespace()
            return True
        fetch = self._resources.fetch
        try:
            template, supervision = await fetch.template_and_supervision(order.instance)
            namespace_view = await fetch.namespace_view(order.instance)
        except NotFound as error:
            self._refusal = str(error)
            return True
        if supervision is None:
            # A stop order follows soon; until then the restart policy is unknown.
            spec = order.instance.spec
            raise NotFound(f"workload {spec.workload} does not exist, or has no group {spec.group} any more")
        self.order = msgspec.structs.replace(
            self.order, template=template, supervision=supervision, namespace_view=namespace_view
        )
        return True

    async def _read_missing_namespace(self) -> None:
        """Read the namespace of an order that an earlier version of the agent saved without it."""
        if self.order.namespace_view is None and self._supervisor.settled:
            await self._refresh_namespace()

    async def _refresh_namespace(self) -> None:
        fetch, seconds = self._resources.fetch, self._services.quick_seconds
        found = await fetch.namespace_view_quickly(self.order.instance, seconds)
        if found is not None:
            self.order = msgspec.structs.replace(self.order, namespace_view=found)

    async def _inputs(self, *, reading: bool = False) -> SyncInputs:
        """Read what `sync` decides on. `reading`: include secrets, names and identities even if all tasks run."""
        engine, units = self._engines.find(self.uid, self.memory.engine)
        refusal, wait = self._refusal, ""
        begun = bool(self.memory.tasks or units)
        if engine and not self.memory.engine:
            self.memory = msgspec.structs.replace(self.memory, engine=engine)
        template = self.order.template
        if template is not None and not self.memory.engine and units is not None:
            chosen, refusal = pick_engine(template, self._engines.capabilities)
            if chosen:
                self.memory = msgspec.structs.replace(self.memory, engine=chosen)
                _, units = self._engines.find(self.uid, chosen)
                if units is None:
                    wait, units = f"the engine {chosen} does not answer", ()
        forbidden = self._forbidden()
        if forbidden and not begun:
            refusal = refusal or forbidden
        done = self.memory.over or self.gone
        if template is not None and not refusal and not done:
            answer = self._supervisor.admit(self.order, begun=begun)
            refusal, wait = answer.refusal, wait or answer.wait
        refusal_reason = REFUSED
        if template is not None and template.ports and not (begun or refusal or wait or done):
            refusal = self._resources.ports.taken_ports(self.order)
            refusal_reason = PORT_TAKEN if refusal else refusal_reason
        prepared = PreparedVolumes()
        if template is not None and template.volumes and not (refusal or done):
            mapped = self._engines.maps_users(self.memory.engine)
            prepared = await self._resources.volumes.prepare(self.order, begun=begun, mapped=mapped)
            refusal = prepared.refusal
        wanted = not (refusal or done) and (reading or self._may_start(units))
        attached = await attach(self._resources.networks, self.order, leasing=wanted and not wait)
        refusal = refusal or attached.refusal
        discovery, names = NO_DISCOVERY, self._resources.names
        if wanted and names is not None:
            discovery = await names.discovery(self.order)
        blocked = MissingDependency(forbidden, FORBIDDEN) if forbidden else MissingDependency(prepared.missing)
        blocked = blocked.or_else(attached.missing, "NetworkMissing")
        secrets: Mapping[str, str] = {}
        identities: Mapping[str, str] = {}
        if wanted:
            secrets, blocked = await self._read_secrets(blocked)
            identities, blocked = await self._read_identities(blocked)
        if self._ended(units):
            await self._refresh_supervision()
        contact, live_files = self._services.contact, self._resources.live_files
        return SyncInputs(
            units=units,
            down=self._down() if units is None else "",
            known=frozenset(self._known),
            probe_results=self._probes.probe_results,
            status=self.status,
            gone=self.gone,
            draining=self._draining(),
            refusal=refusal,
            refusal_reason=refusal_reason,
            published=publishes(self.order, self.memory.engine, self._engines.capabilities),
            own_network="network" in self._extras,
            attachment=attached.attachment,
            host=self._engines.published_at(self.memory.engine) or self._resources.ports.address,
            zone=self._resources.ports.zone,
            otlp=self._services.otlp,
            names=discovery,
            mounts_hosts="hosts" in self._extras,
            users="user" in self._extras,
            wait=wait,
            sources=prepared.sources,
            new_volumes=prepared.new,
            missing=blocked.message,
            missing_reason=blocked.reason,
            secrets=secrets,
            identities=identities,
            live_files=live_files.folder if live_files is not None else "",
            extras=self._extras,
            settled=self._supervisor.settled,
            silence=contact.silence,
            recent_silence=contact.recent_silence,
            error=_reason_and_message(self._error),
        )

    async def read_all(self) -> SyncInputs:
        """Read everything that the launches of the instance contain."""
        return await self._inputs(reading=True)

    async def _read_secrets(self, blocked: MissingDependency) -> tuple[Mapping[str, str], MissingDependency]:
        if self.order.template is None or not names_of(self.order):
            return {}, blocked
        try:
            secrets, self.order = await self._resources.vault.read(self.order)
        except NotFound as error:
            return {}, blocked.or_else(str(error), "SecretMissing")
        except Unavailable as error:
            return {}, blocked.or_else(str(error), "SecretUnavailable")
        return secrets, blocked

    async def _read_identities(self, blocked: MissingDependency) -> tuple[Mapping[str, str], MissingDependency]:
        if not _has_identity(self.order):
            return {}, blocked
        try:
            return await self._resources.identities.ready(self.order), blocked
        except (NotFound, Forbidden, Unsupported) as error:
            return {}, blocked.or_else(f"no identity token is issued: {error}", "IdentityMissing")

    def _forbidden(self) -> str:
        """Return what the namespace does not allow of the order, should the API server have admitted it."""
        template = self.order.template
        if template is None or not self.memory.engine:
            return ""
        found = next(self.order.allowance.refusals(template, self.memory.engine), None)
        return "" if found is None else found.message

    def _down(self) -> str:
        """Return why the engine of the instance does not answer; empty: the engine is not known to be down."""
        name = self.memory.engine
        engine = self._engines.capabilities.get(name)
        if not name or (engine is not None and engine.up):
            return ""
        why = f" ({engine.message})" if engine is not None and engine.message else ""
        return f"the engine {name} is down{why}; this is the status that was last observed"

    @property
    def _extras(self) -> frozenset[str]:
        return self._engines.extras(self.memory.engine)

    def _may_start(self, units: Sequence[Observed] | None) -> bool:
        """Return whether some task of the instance does not run."""
        running = sum(each.phase is UnitPhase.RUNNING for each in units or ())
        return self.order.template is not None and running < len(self.order.template.tasks)

    def _ended(self, units: Sequence[Observed] | None) -> bool:
        """Return whether a unit has exited and `sync` is about to decide on its restart."""
        if units is None or self.gone or self.memory.ending is not None:
            return False
        return any(
            each.phase is UnitPhase.EXITED
            and each.unit.attempt == self.memory.task(each.unit.task).attempt
            and not self.memory.task(each.unit.task).completed
            for each in units
        )

    async def _refresh_supervision(self) -> None:
        fetch, seconds = self._resources.fetch, self._services.quick_seconds
        try:
            supervision = await fetch.supervision_quickly(self.order.instance, seconds)
        except MandorError as error:
            log.warning("instance %s: cannot read its restart policy: %s", self.order.name, error)
            return
        if supervision is not None:
            self.order = msgspec.structs.replace(self.order, supervision=supervision)
        await self._refresh_namespace()
        if self.status.images:
            # The release may have been given image digests since this instance was started.
            template = await fetch.template_quickly(self.order.instance, seconds)
            self.order = msgspec.structs.replace(self.order, template=template or self.order.template)

    async def _save(self, decision: Decision) -> None:
        self.memory = decision.memory
        entry = Entry(order=self.order, memory=self.memory)
        if decision.forget or self.order.template is None or not _differs(entry, self._saved):
            return
        try:
            await self._supervisor.save(entry)
            self._saved = entry
        except OSError as error:
            if any(isinstance(action, Start) for action in decision.actions):
                raise  # Nothing is started that is not in the journal.
            log.error("instance %s: cannot write its journal entry: %s", self.order.name, error)

    async def remember(self, memory: Memory) -> None:
        """Write the memory to the journal."""
        self.memory = memory
        await self._supervisor.save(entry := Entry(order=self.order, memory=memory))
        self._saved = entry

    def _report(self, decision: Decision) -> None:
        if self.memory.over:
            self._supervisor.release(self.uid, over=True)
        elif self.memory.ending is not None or self.gone:
            self._supervisor.release(self.uid, over=False)
        # Before the first list the stored status is unknown: it may be this one.
        if decision.status is not None and self._supervisor.settled:
            before = self.status
            self.status = decision.status
            if self.trace is not None:
                self.trace.described(decision.status)
            self._supervisor.report(self.order, before, decision.status)

    async def _act(self, actions: Sequence[Action]) -> None:
        """Run all stops at once, then the other actions in order; list the engine's units afterwards."""
        engine, metrics = self._engines.engine(self.memory.engine), self._services.metrics
        stops = [action for action in actions if isinstance(action, Stop)]
        try:
            if stops:
                timeout = max(each.grace_seconds for each in stops) + ENGINE_SECONDS
                await bounded(timeout, side_by_side([self._stop(engine, each) for each in stops]))
            for action in actions:
                if isinstance(action, Remove):
                    await self._services.finish_log(action.unit)
                    await bounded(ENGINE_SECONDS, metrics.call(engine.name, "remove", engine.remove(action.unit)))
                elif isinstance(action, Start):
                    await self._start(engine, action)
        except Exception:
            await self._engines.refresh(self.memory.engine)
            raise
        await self._engines.refresh(self.memory.engine)

    async def _stop(self, engine: Engine, action: Stop) -> None:
        stopping = engine.stop(action.unit, grace_seconds=action.grace_seconds)
        await self._services.metrics.call(engine.name, "stop", stopping)

    async def _start(self, engine: Engine, action: Start) -> None:
        """Start a unit, however long that takes, unless the instance must end or loses the control plane for too
        long."""
        starting = asyncio.ensure_future(self._start_in_slot(engine, action))
        starting.add_done_callback(lambda _: self._start_settled.set())
        try:
            while not starting.done() and not self._must_end and self._within_stop_after():
                left = max(SOON_SECONDS, self.order.supervision.stop_after - self._services.contact.silence)
                self._start_settled.clear()
                await wait_event(self._clock, min(PROGRESS_SECONDS, left), self._start_settled)
                if not starting.done() and not self._must_end:
                    await self._report_progress()
            if starting.done():
                await starting
                self._known.add(action.unit)
        except PortTaken as error:
            if action.unit.attempt > 1 and not isinstance(self._error, PortTaken):
                raise  # The previous attempt of this task may still be releasing the port.
            self._resources.ports.port_taken(self.order, error.port)
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

    def _within_stop_after(self) -> bool:
        """Return whether the control plane has been silent for less than the group's `stop_after`."""
        return self._services.contact.silence < self.order.supervision.stop_after

    async def _report_progress(self) -> None:
        """Report what a long start waits for, where the engine shows it; give up if the engine does not answer."""
        try:
            async with asyncio.timeout(PROGRESS_SECONDS):
                await self._engines.refresh(self.memory.engine)
        except TimeoutError:
            return
        inputs = await self._inputs()
        if any(each.phase is UnitPhase.STARTING and each.message for each in inputs.units or ()):
            status = describe(self.order, self.memory, inputs, self._clock.now())
            self._report(Decision(self.memory, status=status))

    async def _start_in_slot(self, engine: Engine, action: Start) -> None:
        """Start a unit within the concurrency limit; a long start gives its slot back and goes on."""
        if _has_identity(self.order):
            user = self._engines.user_on_node(engine.name, action.launch.user)
            await self._resources.identities.give(self.order, action.unit.task, user)
        if action.live_files:
            await self._delivery.write(action.unit.task, action.launch, action.live_files)
        with starting_task(self.order, action.unit, engine.name):
            async with self._services.starts.take(SLOT_SECONDS):
                start = engine.start(action.unit, action.launch)
                revocable = self.order.supervision.stop_after != NEVER
                reason = "the control plane has not answered for longer than stop_after"
                work = RevocableTask(start, self._within_stop_after, reason) if revocable else start
                await self._services.metrics.call(engine.name, "start", work)
        if seeded := frozenset(each.name for each in action.launch.mounts if each.seed):
            await self._resources.volumes.mark_used(self.order, seeded)

    def _pause_after(self, decision: Decision) -> float:
        """Return 0, or a growing pause while the same actions are repeated without effect."""
        self._repeats = self._repeats + 1 if decision.actions == self._last else 0
        self._last = decision.actions
        return BACKOFF.pause(self._repeats) if self._repeats else 0.0

    @property
    def stopping(self) -> bool:
        """Whether the instance is to end and a unit of it still runs."""
        return (self.gone or self.memory.ending is not None) and self.alive

    @property
    def alive(self) -> bool:
        """Whether a unit of the instance runs, as last listed."""
        _, units = self._engines.find(self.uid, self.memory.engine)
        return bool(live(units or ()))


def _has_identity(order: Order) -> bool:
    """Return whether a task of the instance has an identity."""
    return order.template is not None and any(each.identity is not None for each in order.template.tasks.values())


def _differs(entry: Entry, saved: Entry | None) -> bool:
    """Return whether the journal has to be written; the status is not part of it."""
    if saved is None:
        return True
    return entry.memory != saved.memory or _saved_parts(entry.order) != _saved_parts(saved.order)


def _saved_parts(order: Order) -> tuple[object, ...]:
    spec = order.instance.spec
    return spec, order.template, order.namespace_view, order.supervision, order.cluster, order.epoch


def new_entry(instance: Instance, cluster: str, epoch: int) -> Entry:
    """Return the entry of an order that is not in the journal; its stored status names its engine, if it had one."""
    order = Order(instance=instance, cluster=cluster, epoch=epoch)
    return Entry(order=order, memory=Memory(engine=instance.status.engine))


def _reason_and_message(error: Exception | None) -> tuple[str, str]:
    if error is None:
        return "", ""
    return type(error).__name__, str(error)[:500]
