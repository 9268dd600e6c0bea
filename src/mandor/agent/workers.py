"""All workers of a node, and what they share: engines, journal, room, reports."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Literal, Protocol

from mandor.agent.cluster_contact import ClusterContact
from mandor.agent.discovery import NO_DISCOVERY, Discovery
from mandor.agent.feed import Source
from mandor.agent.fetch import Fetch
from mandor.agent.guard import GuardControl, guarded
from mandor.agent.hosts_files import HostsFiles, LocalInstance
from mandor.agent.identity import IdentityKeeper
from mandor.agent.journal import Blocking, Journal
from mandor.agent.live_files import LiveFileKeeper
from mandor.agent.machine import Machine
from mandor.agent.metrics import AgentMetrics
from mandor.agent.observer import Observer
from mandor.agent.order import Entry, Order
from mandor.agent.probes import Ask
from mandor.agent.reporter import Reporter
from mandor.agent.resource_admission import AdmissionResult, ResourceAdmission
from mandor.agent.settings import AgentSettings
from mandor.agent.shipping.shipper import LogSource
from mandor.agent.starts import ConcurrencyLimit
from mandor.agent.status import DISCONNECTED
from mandor.agent.sync import live
from mandor.agent.tracing import Tracing, report_context
from mandor.agent.vault import Vault
from mandor.agent.volumes import PreparedVolumes, VolumeKeeper
from mandor.agent.worker import Worker, fresh_entry
from mandor.engines.base import Engine, Observed, Unit, UnitPhase
from mandor.errors import EngineDown, MandorError, NotFound
from mandor.lib.clock import Clock
from mandor.lib.tasks import Background
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus
from mandor.model.meta import Key, Meta, Object
from mandor.model.node import MAPPED_USERS, Capabilities
from mandor.model.phase import Phase
from mandor.model.record import ClusterSpec
from mandor.model.resources import Resources
from mandor.model.user_range import mapped_user
from mandor.store.base import Store
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

GUARD_SECONDS = 5.0
ENDED_MOST = 10_000
"""So many that ended are remembered; none of their uids is ever used again."""


class Host(Protocol):
    """The node that they are on."""

    address: str

    def poke(self) -> None:
        """It has something new to show: an engine came or went, something is held."""

    def taken_ports(self, order: Order) -> str: ...

    def port_taken(self, order: Order, port: int) -> None: ...


class Workers:
    """One worker an instance; what they need of each other goes through here."""

    def __init__(
        self,
        settings: AgentSettings,
        store: Store,
        engines: Mapping[str, Engine],
        clock: Clock,
        journal: Journal,
        contact: ClusterContact,
        recorder: Recorder,
        blocking: Blocking,
        host: Host,
        machine: Machine,
        whose: Callable[[], Awaitable[ClusterSpec]],
        ask: Ask,
        tracing: Tracing | None = None,
        knows: Callable[[str], bool] = lambda feature: True,
        guard_control: GuardControl | None = None,
    ) -> None:
        """`whose`: which cluster answers. `tracing`: None: nothing is recorded. `knows`: what the servers can do.
        `guard_control`: None: nobody stops anything when this process is gone."""
        self.tracing = tracing
        self._guard_control = guard_control
        self.ask = ask
        self._host, self._changed = host, host.poke
        self.clock = clock
        self.fetch = Fetch(store, clock)
        self.vault = Vault(self.fetch, lambda: journal.sealing_key)
        self.identities: IdentityKeeper | None = None
        """Gets the tokens of tasks; None: this agent has no link to get them by."""
        self.live_files: LiveFileKeeper | None = None
        """Replaces files of running tasks; None: the machine is simulated, and has no files."""
        self.starts = ConcurrencyLimit(settings.starts_most)
        self.measures = AgentMetrics()
        self.quick_seconds = settings.quick_seconds
        self.otlp = settings.otlp
        self.by_uid: dict[str, Worker] = {}
        at_once = partial(knows, "running-at-once")
        self.reporter = Reporter(store, clock, at_once=at_once)
        if tracing is not None:
            self.reporter = Reporter(store, clock, reporting=self._reporting, reported=self._reported, at_once=at_once)
        self.volumes = VolumeKeeper(
            settings.name,
            settings.data / "volumes",
            settings.host_paths,
            machine,
            store,
            clock,
            blocking,
            in_use=self.has_volume,
        )
        self.names_kept = (
            HostsFiles(
                settings.name,
                settings.data / "names",
                store,
                clock,
                blocking,
                instances=self._local_instances,
                address=lambda: host.address,
                whose=whose,
            )
            if settings.names
            else None
        )
        self._node = settings.name
        self._journal, self._contact, self._recorder, self._blocking = journal, contact, recorder, blocking
        self._observers = {
            name: Observer(
                engine,
                clock,
                self._engine_changed,
                poll_seconds=settings.poll_seconds,
                turned=host.poke,
                idle=self.starts.idle,
            )
            for name, engine in engines.items()
        }
        self.log_wanted: Callable[[Unit], Awaitable[None]] = _nobody
        """Returns when the log of a unit may go."""
        self._capabilities: Mapping[str, Capabilities] = {}
        self._room = ResourceAdmission(Resources())
        self._forget_before_epoch = 0
        self._source: Source | None = None
        self._ended: dict[str, None] = {}
        """Whose order was here and is gone, the latest last: whatever comes up of it later, a daemon began late."""
        self._settled = asyncio.Event()
        self._tasks: Background | None = None

    def begin(self, tasks: Background) -> None:
        """Take up what the journal knows; engines are looked at, nothing is started before there was time for news."""
        self._tasks = tasks
        for entry in self._journal.entries():
            if entry.order.uid not in self.by_uid:
                self._hire(entry)
        if self.by_uid:
            log.info("%d orders are in the journal", len(self.by_uid))
        for name, observer in self._observers.items():
            tasks.start(observer.run(), f"engine {name}")
        tasks.start(self.reporter.run(), "reports")
        if self._guard_control is not None:
            tasks.start(self.keep_guard(self._guard_control), "guard")

    async def settle_after(self, seconds: float) -> None:
        """Without a control plane the last orders count."""
        await self.clock.sleep(seconds)
        if not self.settled:
            log.warning("no orders from the control plane within %.0fs: going on with those of the journal", seconds)
            self._settle()

    async def close(self) -> None:
        await self.fetch.close()

    # Orders.

    def listed(self, items: Sequence[Object], source: Source) -> None:
        """A complete list: what it does not name is judged by whose list it is."""
        self._source = source
        named = set()
        for item in items:
            assert isinstance(item, Instance)
            named.add(item.meta.uid)
            self.ordered(item, source, listed=True)
        for uid in [uid for uid in self.by_uid if uid not in named]:
            self.missing(uid, source)
        self._settle()

    def ordered(self, instance: Instance, source: Source, *, listed: bool = False) -> None:
        """The token is the uid: an order that comes twice is one order."""
        uid = instance.meta.uid
        self.reporter.saw(instance, listed=listed)
        worker = self.by_uid.get(uid)
        if worker is None:
            worker = self._hire(fresh_entry(instance, source.cluster, source.epoch))
        worker.told(instance, source.cluster, source.epoch)

    def missing(self, uid: str, source: Source) -> None:
        self._source = source
        self.reporter.drop(uid)
        worker = self.by_uid.get(uid)
        if worker is not None and not worker.gone:
            self._judge(worker, source)

    def _judge(self, worker: Worker, source: Source) -> None:
        what, why = judge_missing(worker.order, source, self._forget_before_epoch)
        if what == "gone" and not self._sticky(worker):
            worker.dismiss()
        elif what == "held" and worker.memory.held != why:
            worker.hold(why)
            self._recorder.note(worker.order.instance, "Held", why, type="warning", node=self._node)
            self._changed()

    def _sticky(self, worker: Worker) -> bool:
        """What was held once stays so until someone says that it may be forgotten."""
        return bool(worker.memory.held) and worker.order.epoch >= self._forget_before_epoch

    def _hire(self, entry: Entry) -> Worker:
        assert self._tasks is not None, "the crew begins before it gets orders"
        worker = Worker(entry, self)
        self.by_uid[worker.uid] = worker
        self._tasks.start(worker.run(), f"instance {worker.order.name}")
        return worker

    async def keep_guard(self, guard_control: GuardControl) -> None:
        """As long as there is something to be guarded, one that ended is followed by another."""
        while True:
            try:
                if any(guarded(each.order, each.memory) for each in self.by_uid.values()):
                    await guard_control.start()
                else:
                    await guard_control.stop()
            except MandorError as error:
                log.warning("%s", error)
            await self.clock.sleep(GUARD_SECONDS)

    # ForeignPorts: units that no order speaks of.

    def strangers(self) -> set[str]:
        """Known only once there was a complete list."""
        if self._source is None:
            return set()
        return {uid for each in self._observers.values() for uid in each.units if uid not in self.by_uid}

    def _judge_strangers(self) -> None:
        if self._source is None:
            return
        for uid in self.strangers():
            what, _ = judge_missing(None, self._source, self._forget_before_epoch)
            if uid in self._ended:
                log.warning("units of %s came up after its end, and are removed", uid)
            elif what == "gone":
                log.warning("units of %s, which no order speaks of, are removed: the node may forget them", uid)
            else:
                continue
            self._hire(fresh_entry(_stranger(uid, self._node), "", 0)).dismiss()

    def held(self) -> list[str]:
        """What runs here and is left alone, for people to read."""
        known = [each.order.name for each in self.by_uid.values() if each.memory.held and each.alive]
        unknown = [uid for uid in sorted(self.strangers()) if self._alive(uid)]
        return sorted(known) + unknown

    def _alive(self, uid: str) -> bool:
        return any(live(each.of(uid) or ()) for each in self._observers.values())

    # What the node says.

    def allow(self, allocatable: Resources, forget_before_epoch: int, engines: Mapping[str, Capabilities]) -> None:
        self._room.allocatable = allocatable
        turned = {name for name in engines if engines[name].up != self._is_up(name)}
        self._capabilities = engines
        if forget_before_epoch != self._forget_before_epoch:
            self._forget_before_epoch = forget_before_epoch
            for worker in list(self.by_uid.values()):
                if worker.memory.held and self._source is not None:
                    self._judge(worker, self._source)
            self._judge_strangers()
        begun = {uid: worker for uid, worker in self.by_uid.items() if worker.memory.tasks}
        self._poke(uid for uid in self.by_uid if uid not in begun or begun[uid].memory.engine in turned)

    def _is_up(self, engine: str) -> bool:
        known = self._capabilities.get(engine)
        return known is None or known.up

    def names(self) -> Mapping[str, str]:
        """Return `namespace/name` by uid."""
        found = ((uid, worker.order.instance.meta) for uid, worker in self.by_uid.items())
        return {uid: f"{meta.namespace}/{meta.name}" for uid, meta in found}

    def ready(self) -> frozenset[str]:
        """Return the uids of ready instances."""
        return frozenset(uid for uid, worker in self.by_uid.items() if worker.status.ready)

    def latest(self, worker: Worker, task: str) -> Unit:
        """The unit whose logs someone wants: the latest that its engine knows."""
        _, units = self.look(worker.uid, worker.memory.engine)
        found = [each.unit for each in units or () if each.unit.task == task]
        if not found:
            raise NotFound(f"task {task} has not run yet")
        return max(found)

    def log_sources(self) -> Iterator[LogSource]:
        """Every unit there is, as far as engines answer."""
        for worker in self.by_uid.values():
            observer = self._observers.get(worker.memory.engine)
            if observer is None:
                continue
            for each in observer.of(worker.uid) or ():
                over = each.phase is UnitPhase.EXITED
                order = worker.order
                yield LogSource(each.unit, observer.engine, order.instance, order.supervision.labels, over)

    def identified(self) -> Iterator[Order]:
        """The orders of instances that have not ended."""
        for worker in list(self.by_uid.values()):
            if not (worker.gone or worker.memory.over or worker.memory.ending is not None):
                yield worker.order

    # What workers ask for.

    @property
    def settled(self) -> bool:
        return self._settled.is_set()

    @property
    def silence(self) -> float:
        return self._contact.silence

    @property
    def away(self) -> float:
        return self._contact.away

    def engine(self, name: str) -> Engine:
        observer = self._observers.get(name)
        if observer is None:
            raise EngineDown(f"this node has no engine {name} any more", engine=name)
        return observer.engine

    def engines(self) -> Mapping[str, Capabilities]:
        return self._capabilities

    def look(self, uid: str, engine: str) -> tuple[str, tuple[Observed, ...] | None]:
        if engine:
            observer = self._observers.get(engine)
            return engine, None if observer is None else observer.of(uid)
        for name, observer in self._observers.items():
            units = observer.of(uid)
            if units:
                return name, units
        return "", () if self.looked("") else None

    def looked(self, engine: str) -> bool:
        observers = self._observers
        if engine:
            return engine not in observers or observers[engine].looked
        return all(each.looked for each in observers.values())

    async def fresh(self, engine: str) -> None:
        await self._observers[engine].fresh()

    def ask_room(self, order: Order, *, begun: bool) -> AdmissionResult:
        assert order.template is not None
        if begun:
            if order.uid not in self._room:
                self._room.keep(order.uid, order.template.request)
            return AdmissionResult()
        names = self.names()
        if any(name == names[order.uid] and self.by_uid[uid].leaves for uid, name in names.items()):
            return AdmissionResult(wait="an earlier instance of its name is still stopping here")
        return self._room.ask(order.uid, order.template.request)

    def leave_room(self, uid: str, *, over: bool) -> None:
        if not over:
            self._room.leave(uid)
        elif self._room.free(uid):
            self._poke(uid for uid, worker in self.by_uid.items() if not worker.memory.tasks)

    async def prepare(self, order: Order, engine: str, *, begun: bool) -> PreparedVolumes:
        return await self.volumes.prepare(order, begun=begun, mapped=self._maps_users(engine))

    def user_on_node(self, engine: str, user: str | int | None) -> str | int | None:
        return mapped_user(user) if isinstance(user, int) and self._maps_users(engine) else user

    def _maps_users(self, engine: str) -> bool:
        capabilities = self._capabilities.get(engine)
        return capabilities is not None and MAPPED_USERS in capabilities.extras

    def taken_ports(self, order: Order) -> str:
        return self._host.taken_ports(order)

    def port_taken(self, order: Order, port: int) -> None:
        self._host.port_taken(order, port)

    @property
    def address(self) -> str:
        return self._host.address

    def has_volume(self, key: Key) -> bool:
        return any(
            key.name in worker.order.instance.spec.volumes and key.namespace == worker.order.instance.meta.namespace
            for worker in self.by_uid.values()
            if not worker.memory.over
        )

    async def know_names(self, order: Order) -> Discovery:
        return await self.names_kept.know(order) if self.names_kept is not None else NO_DISCOVERY

    def _local_instances(self) -> Iterable[LocalInstance]:
        return [LocalInstance(each.order, each.status) for each in self.by_uid.values() if not each.memory.over]

    async def finish_log(self, unit: Unit) -> None:
        await self.log_wanted(unit)

    async def keep(self, entry: Entry) -> None:
        await self._blocking(self._journal.write, entry)
        if self._guard_control is not None and entry.memory.ending is None and guarded(entry.order, entry.memory):
            await self._guard_control.start()

    async def forget(self, uid: str) -> None:
        await self.volumes.clear(uid)  # While the journal still knows whose it is, should this be cut short.
        await self._blocking(self._journal.forget, uid)
        self.reporter.drop(uid)
        self.by_uid.pop(uid, None)
        self._ended[uid] = None
        if len(self._ended) > ENDED_MOST:
            del self._ended[next(iter(self._ended))]
        self._names = self._ready = None
        self.volumes.left(uid)
        if self.names_kept is not None:
            await self.names_kept.forget(uid)
        if self.identities is not None:
            await self.identities.forget(uid)
        if self.live_files is not None:
            await self.live_files.forget(uid)

    def report(self, order: Order, before: InstanceStatus, status: InstanceStatus) -> None:
        self.reporter.report(order.uid, status)
        if self.names_kept is not None:
            self.names_kept.poke()
        note = _note(before, status)
        if note is not None:
            kind, reason, message = note
            self._recorder.note(order.instance, reason, message, type=kind, node=self._node)

    def record_secret_change(self, order: Order, message: str, *, failed: bool = False) -> None:
        reason = "SecretChangeFailed" if failed else "SecretChanged"
        self._recorder.note(order.instance, reason, message, type="warning" if failed else "normal", node=self._node)

    def _reporting(self, uids: Iterable[str]) -> AbstractContextManager[object]:
        return report_context(self.by_uid[uid].trace for uid in uids if uid in self.by_uid)

    def _reported(self, uid: str, status: InstanceStatus) -> None:
        worker = self.by_uid.get(uid)
        if worker is not None and worker.trace is not None:
            worker.trace.reported(status)

    # News.

    def _engine_changed(self, uids: Iterable[str] | None) -> None:
        self._poke(self.by_uid if uids is None else uids)
        self._judge_strangers()

    def _settle(self) -> None:
        if not self._settled.is_set():
            self._settled.set()
            self._poke(self.by_uid)
            self._judge_strangers()

    def _poke(self, uids: Iterable[str]) -> None:
        for uid in list(uids):
            worker = self.by_uid.get(uid)
            if worker is not None:
                worker.poke()


def judge_missing(order: Order | None, source: Source, forget_before_epoch: int) -> tuple[Literal["gone", "held"], str]:
    """Decide what to do with an instance of this node that the control plane does not list: pure.

    `gone`: stop it. `held`: leave it as it is, for the reason returned. A store that was emptied, restored or replaced
    does not have earlier orders; only a list from the cluster and epoch that gave an order shows that it was withdrawn.
    """
    if order is None:
        if forget_before_epoch > 0:
            return "gone", ""
        return "held", "the agent has no order for it: it may belong to another cluster"
    if order.cluster and order.cluster != source.cluster:
        return "held", f"cluster {order.cluster} ordered it; the agent is now connected to cluster {source.cluster}"
    if order.epoch < forget_before_epoch:
        return "gone", ""
    if order.epoch != source.epoch:
        return "held", f"it was ordered in epoch {order.epoch} of the cluster, which is now in epoch {source.epoch}"
    if order.instance.meta.version > source.revision:
        version = order.instance.meta.version
        return "held", f"its order has version {version}, but the store is only at revision {source.revision}"
    return "gone", ""


def _note(before: InstanceStatus, status: InstanceStatus) -> tuple[Literal["normal", "warning"], str, str] | None:
    """What people want to read about later; plain progress is in the status."""
    if status.phase is Phase.FAILED and before.phase is not Phase.FAILED:
        return "warning", status.reason, status.message
    if status.phase is Phase.STOPPED and before.phase is not Phase.STOPPED and status.reason == DISCONNECTED:
        return "warning", status.reason, status.message
    if status.restarts > before.restarts and status.reason:
        return "warning", status.reason, status.message
    return None


async def _nobody(unit: Unit) -> None:
    return


def _stranger(uid: str, node: str) -> Instance:
    """Stands for an order that nobody has: enough to stop and remove its units."""
    return Instance(
        meta=Meta(name=uid, namespace="default", uid=uid),
        spec=InstanceSpec(workload="unknown", release="unknown", index=0, node=node),
    )
