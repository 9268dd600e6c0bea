"""The workers of all instances of the node, and what they share."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from mandor.agent.cluster_contact import ClusterContact
from mandor.agent.drain import Drains
from mandor.agent.external_checks import ExternalChecks
from mandor.agent.feed import Source
from mandor.agent.fetch import Fetch
from mandor.agent.guard import GuardControl, guarded
from mandor.agent.hosts_files import HostsFiles
from mandor.agent.identity import IdentityKeeper
from mandor.agent.journal import Blocking, Journal
from mandor.agent.link import Link
from mandor.agent.live_files import LiveFileKeeper
from mandor.agent.machine import Machine
from mandor.agent.metrics import AgentMetrics
from mandor.agent.name_keeper import NameKeeper, NameServer
from mandor.agent.namespace_watch import LocalInstance, NamespaceWatch
from mandor.agent.networks import LocalUnits, NetworkKeeper
from mandor.agent.node_engines import NodeEngines
from mandor.agent.order import Entry, Order
from mandor.agent.probes import RunProbe
from mandor.agent.reporter import Reporter
from mandor.agent.resource_admission import AdmissionResult, ResourceAdmission
from mandor.agent.services import AgentServices, InstanceNames, InstanceResources, NodePorts
from mandor.agent.settings import AgentSettings
from mandor.agent.shipping.shipper import LogSource
from mandor.agent.starts import ConcurrencyLimit
from mandor.agent.status import DISCONNECTED
from mandor.agent.tracing import Tracing, report_context
from mandor.agent.traffic import Balancing, TrafficKeeper
from mandor.agent.vault import Vault
from mandor.agent.volumes import VolumeKeeper
from mandor.agent.worker import Worker, new_entry
from mandor.engines.base import Engine, Unit, UnitPhase
from mandor.errors import EngineDown, MandorError, NotFound
from mandor.lib.clock import Clock
from mandor.lib.egress import Egress
from mandor.lib.tasks import Background
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus
from mandor.model.meta import Key, Meta, Object
from mandor.model.node import Capabilities
from mandor.model.phase import Phase
from mandor.model.record import ClusterSpec
from mandor.model.resources import Resources
from mandor.network.base import Overlay
from mandor.store.base import Store
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

GUARD_SECONDS = 5.0
"""Interval between checks whether the guard has to run."""
ENDED_MOST = 10_000
"""Largest number of ended instances whose uids are remembered; a uid is never used again."""


class Host(NodePorts, Protocol):
    """The node that the instances run on."""

    def wake(self) -> None:
        """Update the node's object: an engine came or went, or an instance is held."""


class Workers:
    """Creates one worker for each order and implements `Supervisor` for them."""

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
        link: Link,
        read_cluster: Callable[[], Awaitable[ClusterSpec]],
        run_probe: RunProbe,
        tracing: Tracing | None = None,
        guard_control: GuardControl | None = None,
        live_files: LiveFileKeeper | None = None,
        balancing: Balancing | None = None,
        name_server: NameServer | None = None,
        overlay: Overlay | None = None,
    ) -> None:
        """`read_cluster`: returns the cluster that answers. `guard_control`: None: no guard is started. `balancing`:
        None: the node balances no services. `name_server`: None: instances find names in hosts files only.
        `overlay`: None: the node has no networks that span nodes."""
        self._node, self._clock, self._host = settings.name, clock, host
        self._journal, self._recorder, self._blocking = journal, recorder, blocking
        self._guard_control = guard_control
        self.by_uid: dict[str, Worker] = {}
        self.services = AgentServices(
            clock=clock,
            contact=contact,
            starts=ConcurrencyLimit(settings.starts_most),
            metrics=AgentMetrics(),
            run_probe=run_probe,
            tracing=tracing,
            quick_seconds=settings.quick_seconds,
            otlp=settings.otlp,
            finish_log=_keep_no_log,
        )
        self._overlay = overlay
        self.resources = self._make_resources(
            settings, store, machine, link, read_cluster, live_files, balancing, name_server
        )
        self.engines = NodeEngines(
            engines,
            clock,
            self._engine_changed,
            poll_seconds=settings.poll_seconds,
            availability_changed=host.wake,
            idle=self.services.starts.idle,
        )
        self._reporter = self._make_reporter(store, link)
        self._admission = ResourceAdmission(Resources())
        self._forget_before_epoch = 0
        self._address = ""
        """Address of the node that the instances were last published with."""
        self._source: Source | None = None
        self._ended: dict[str, None] = {}
        """Uids of instances that were removed, latest last: units of theirs that an engine shows later are removed."""
        self._settled = asyncio.Event()
        self._tasks: Background | None = None

    def _make_resources(
        self,
        settings: AgentSettings,
        store: Store,
        machine: Machine,
        link: Link,
        read_cluster: Callable[[], Awaitable[ClusterSpec]],
        live_files: LiveFileKeeper | None,
        balancing: Balancing | None,
        name_server: NameServer | None,
    ) -> InstanceResources:
        clock, blocking, journal = self._clock, self._blocking, self._journal
        fetch = Fetch(store, clock)
        volumes = VolumeKeeper(
            settings.name,
            settings.data / "volumes",
            settings.host_paths,
            machine,
            store,
            clock,
            blocking,
            in_use=self.has_volume,
        )
        networks = self._make_networks(settings)
        watch = NamespaceWatch(settings.name, store, clock, instances=self._local_instances, read_cluster=read_cluster)
        names = None
        if settings.names:
            names = self._make_names(settings, watch, balancing, name_server, link, networks)
        return InstanceResources(
            fetch=fetch,
            vault=Vault(fetch, lambda: journal.sealing_key),
            identities=IdentityKeeper(settings.data, settings.name, link, clock, blocking, self.identified),
            volumes=volumes,
            names=names,
            networks=networks,
            ports=self._host,
            live_files=live_files,
        )

    def _make_networks(self, settings: AgentSettings) -> NetworkKeeper | None:
        if self._overlay is None:
            return None

        def addresses() -> Iterable[tuple[str, str]]:
            return self.engines.addresses()  # the engines are made after the networks

        units = LocalUnits(self._live, addresses)
        file = settings.data / "network" / "networks.json"
        return NetworkKeeper(
            settings.name, file, self._overlay, self._clock, self._blocking, units, self._networks_changed
        )

    def _live(self) -> set[str]:
        """Return the uids of the instances that may still use an address.

        The tasks of an instance that has ended use none; what several tasks share is kept until they are removed.
        """
        over = {
            uid
            for uid, each in self.by_uid.items()
            if each.memory.over and each.order.template is not None and len(each.order.template.tasks) == 1
        }
        return (self.by_uid.keys() | self.engines.uids()) - {uid for uid in over if not self.engines.alive(uid)}

    def _networks_changed(self) -> None:
        self._host.wake()
        self._wake(self.by_uid)
        if self.resources.names is not None:
            self.resources.names.watch.wake()

    def _make_names(
        self,
        settings: AgentSettings,
        watch: NamespaceWatch,
        balancing: Balancing | None,
        name_server: NameServer | None,
        link: Link,
        members: NetworkKeeper | None,
    ) -> InstanceNames:
        def networks() -> frozenset[str]:
            return members.names if members is not None else frozenset()

        def address() -> str:
            return self._host.address

        def zone() -> str:
            return self._host.zone

        virtual = balancing.virtual if balancing is not None else None
        hosts_files = HostsFiles(
            settings.data / "names",
            self._clock,
            self._blocking,
            watch,
            address=address,
            networks=networks,
            virtual=virtual,
        )
        traffic = None
        if balancing is not None:
            checks = ExternalChecks(Egress(settings.egress_allow), self._clock)
            traffic = TrafficKeeper(
                watch, balancing, self._clock, checks, address=address, zone=zone, networks=networks
            )
        drains = Drains(watch, traffic, link, self._clock, lambda uid: self._wake([uid]))
        keeper = None
        if name_server is not None:
            keeper = NameKeeper(
                watch, name_server, self._clock, address=address, zone=zone, networks=networks, virtual=virtual
            )
        return InstanceNames(watch, hosts_files, traffic, drains, keeper)

    def _make_reporter(self, store: Store, link: Link) -> Reporter:
        def at_once() -> bool:
            return "running-at-once" in link.features

        if self.services.tracing is None:
            return Reporter(store, self._clock, at_once=at_once)
        return Reporter(store, self._clock, reporting=self._reporting, reported=self._reported, at_once=at_once)

    def begin(self, tasks: Background) -> None:
        """Create workers for the orders in the journal and start to list engines; nothing is started yet."""
        self._tasks = tasks
        for entry in self._journal.entries():
            if entry.order.uid not in self.by_uid:
                self._add(entry)
        if self.by_uid:
            log.info("the journal has %d orders", len(self.by_uid))
        self.engines.run(tasks)
        tasks.start(self._reporter.run(), "reports")
        if self._guard_control is not None:
            tasks.start(self._run_guard(self._guard_control), "guard")

    async def settle_after(self, seconds: float) -> None:
        """Continue with the orders of the journal if the control plane sends none within `seconds`."""
        await self._clock.sleep(seconds)
        if not self.settled:
            log.warning("no orders from the control plane within %.0f s; continuing with those in the journal", seconds)
            self._settle()

    async def close(self) -> None:
        await self.resources.fetch.close()

    # Orders.

    def listed(self, items: Sequence[Object], source: Source) -> None:
        """Take a complete list of orders; instances that it lacks are judged by its source."""
        self._source = source
        for item in items:
            assert isinstance(item, Instance)
            self.ordered(item, source, listed=True)
        self.missing_in(items, source)
        self._settle()

    def missing_in(self, items: Iterable[Object], source: Source) -> None:
        """Judge the instances that a list lacks; a list of an older store only holds them."""
        named = {each.meta.uid for each in items}
        for uid in [uid for uid in self.by_uid if uid not in named]:
            self.missing(uid, source)

    def ordered(self, instance: Instance, source: Source, *, listed: bool = False) -> None:
        """Take an order; orders with the same uid are the same order."""
        uid = instance.meta.uid
        self._reporter.saw(instance, listed=listed)
        worker = self.by_uid.get(uid)
        if worker is None:
            worker = self._add(new_entry(instance, source.cluster, source.epoch))
        worker.update(instance, source.cluster, source.epoch)

    def missing(self, uid: str, source: Source) -> None:
        """Stop or hold an instance that the control plane does not list."""
        self._source = source
        self._reporter.drop(uid)
        worker = self.by_uid.get(uid)
        if worker is not None and not worker.gone:
            self._judge(worker, source)

    def _judge(self, worker: Worker, source: Source) -> None:
        what, why = judge_missing(worker.order, source, self._forget_before_epoch)
        if what == "gone" and not self._stays_held(worker):
            worker.withdraw()
        elif what == "held" and worker.memory.held != why:
            worker.hold(why)
            self._recorder.note(worker.order.instance, "Held", why, type="warning", node=self._node)
            self._host.wake()

    def _stays_held(self, worker: Worker) -> bool:
        """Return whether the instance stays held until the node may forget its epoch."""
        return bool(worker.memory.held) and worker.order.epoch >= self._forget_before_epoch

    def _add(self, entry: Entry) -> Worker:
        assert self._tasks is not None, "begin() is called before orders arrive"
        worker = Worker(entry, self.services, self.engines, self.resources, self)
        self.by_uid[worker.uid] = worker
        self._tasks.start(worker.run(), f"instance {worker.order.name}")
        return worker

    async def _run_guard(self, control: GuardControl) -> None:
        """Keep a guard running while an instance needs one."""
        while True:
            try:
                if any(guarded(each.order, each.memory) for each in self.by_uid.values()):
                    await control.start()
                else:
                    await control.stop()
            except MandorError as error:
                log.warning("%s", error)
            await self._clock.sleep(GUARD_SECONDS)

    # Units without an order.

    def _unknown_uids(self) -> set[str]:
        """Return the uids of units that have no order; empty before the first complete list."""
        if self._source is None:
            return set()
        return self.engines.uids() - self.by_uid.keys()

    def _judge_unknown(self) -> None:
        if self._source is None:
            return
        for uid in self._unknown_uids():
            what, _ = judge_missing(None, self._source, self._forget_before_epoch)
            if uid in self._ended:
                log.warning("removing units of instance %s, which appeared after it had ended", uid)
            elif what == "gone":
                log.warning("removing units of instance %s: it has no order, and the node may forget it", uid)
            else:
                continue
            self._add(new_entry(_placeholder(uid, self._node), "", 0)).withdraw()

    def held(self) -> list[str]:
        """Return the names, or uids, of instances that run here and are left alone."""
        known = [each.order.name for each in self.by_uid.values() if each.memory.held and each.alive]
        unknown = [uid for uid in sorted(self._unknown_uids()) if self.engines.alive(uid)]
        return sorted(known) + unknown

    # The node.

    def allow(self, allocatable: Resources, forget_before_epoch: int, engines: Mapping[str, Capabilities]) -> None:
        """Take the capacity of the node, the epoch whose orders it may forget, and what its engines can do."""
        self._admission.allocatable = allocatable
        turned = {name for name in engines if engines[name].up != self.engines.up(name)}
        self.engines.capabilities = engines
        if forget_before_epoch != self._forget_before_epoch:
            self._forget_before_epoch = forget_before_epoch
            for worker in list(self.by_uid.values()):
                if worker.memory.held and self._source is not None:
                    self._judge(worker, self._source)
            self._judge_unknown()
        if self._host.address != self._address:
            self._address = self._host.address
            self._wake(self.by_uid)
            if self.resources.names is not None:
                self.resources.names.watch.wake()
            return
        begun = {uid: worker for uid, worker in self.by_uid.items() if worker.memory.tasks}
        self._wake(uid for uid in self.by_uid if uid not in begun or begun[uid].memory.engine in turned)

    def names(self) -> Mapping[str, str]:
        """Return `namespace/name` by uid."""
        found = ((uid, worker.order.instance.meta) for uid, worker in self.by_uid.items())
        return {uid: f"{meta.namespace}/{meta.name}" for uid, meta in found}

    def ready(self) -> frozenset[str]:
        """Return the uids of ready instances."""
        return frozenset(uid for uid, worker in self.by_uid.items() if worker.status.ready)

    def latest(self, worker: Worker, task: str) -> Unit:
        """Return the latest unit of a task that its engine shows; raise `EngineDown` if the engine does not answer."""
        name, units = self.engines.find(worker.uid, worker.memory.engine)
        if units is None:
            known = self.engines.capabilities.get(name)
            why = f": {known.message}" if known is not None and known.message else ""
            raise EngineDown(
                f"the engine {name} of the node {self._node} does not answer{why}",
                hint=f"start {name} on the node; `mandor describe node {self._node}` shows its engines",
                engine=name,
            )
        found = [each.unit for each in units or () if each.unit.task == task]
        if not found:
            raise NotFound(f"task {task} has not run yet")
        return max(found)

    def log_sources(self) -> Iterator[LogSource]:
        """Yield every unit whose engine answers."""
        for worker in self.by_uid.values():
            if worker.memory.engine not in self.engines:
                continue
            name, units = self.engines.find(worker.uid, worker.memory.engine)
            for each in units or ():
                over, order = each.phase is UnitPhase.EXITED, worker.order
                yield LogSource(each.unit, self.engines.engine(name), order.instance, order.supervision.labels, over)

    def identified(self) -> Iterator[Order]:
        """Yield the orders of instances that have not ended."""
        for worker in list(self.by_uid.values()):
            if not (worker.gone or worker.memory.over or worker.memory.ending is not None):
                yield worker.order

    def has_volume(self, key: Key) -> bool:
        """Return whether an instance of this node may still use the volume."""
        return any(
            key.name in worker.order.instance.spec.volumes and key.namespace == worker.order.instance.meta.namespace
            for worker in self.by_uid.values()
            if not worker.memory.over
        )

    def _local_instances(self) -> Iterable[LocalInstance]:
        return [LocalInstance(each.order, each.status) for each in self.by_uid.values() if not each.memory.over]

    # Supervisor.

    @property
    def settled(self) -> bool:
        return self._settled.is_set()

    def admit(self, order: Order, *, begun: bool) -> AdmissionResult:
        assert order.template is not None
        if begun:
            if order.uid not in self._admission:
                self._admission.add_running(order.uid, order.template.request)
            return AdmissionResult()
        names = self.names()
        if any(name == names[order.uid] and self.by_uid[uid].stopping for uid, name in names.items()):
            return AdmissionResult(wait="an earlier instance with the same name is still stopping on this node")
        return self._admission.admit(order.uid, order.template.request)

    def release(self, uid: str, *, over: bool) -> None:
        if not over:
            self._admission.mark_stopping(uid)
        elif self._admission.release(uid):
            self._wake(uid for uid, worker in self.by_uid.items() if not worker.memory.tasks)

    async def save(self, entry: Entry) -> None:
        await self._blocking(self._journal.write, entry)
        if self._guard_control is not None and entry.memory.ending is None and guarded(entry.order, entry.memory):
            await self._guard_control.start()

    async def forget(self, uid: str) -> None:
        resources = self.resources
        await resources.volumes.clear(uid)  # First, so that the journal still names the instance after a crash here.
        await self._blocking(self.services.contact.keep_revision)  # Older lists contain the instance.
        await self._blocking(self._journal.forget, uid)
        self._reporter.drop(uid)
        self.by_uid.pop(uid, None)
        self._ended[uid] = None
        if len(self._ended) > ENDED_MOST:
            del self._ended[next(iter(self._ended))]
        resources.volumes.release(uid)
        if resources.names is not None:
            await resources.names.hosts_files.forget(uid)
            resources.names.watch.wake()
        await resources.identities.forget(uid)
        if resources.live_files is not None:
            await resources.live_files.forget(uid)

    def report(self, order: Order, before: InstanceStatus, status: InstanceStatus) -> None:
        self._reporter.report(order.uid, status)
        if self.resources.names is not None:
            self.resources.names.watch.wake()
        note = _note(before, status)
        if note is not None:
            kind, reason, message = note
            self._recorder.note(order.instance, reason, message, type=kind, node=self._node)

    def record_secret_change(self, order: Order, message: str, *, failed: bool = False) -> None:
        reason = "SecretChangeFailed" if failed else "SecretChanged"
        self._recorder.note(order.instance, reason, message, type="warning" if failed else "normal", node=self._node)

    # Tracing of reports.

    def _reporting(self, uids: Iterable[str]) -> AbstractContextManager[object]:
        return report_context(self.by_uid[uid].trace for uid in uids if uid in self.by_uid)

    def _reported(self, uid: str, status: InstanceStatus) -> None:
        worker = self.by_uid.get(uid)
        if worker is not None and worker.trace is not None:
            worker.trace.reported(status)

    # Waking workers.

    def _engine_changed(self, uids: Iterable[str] | None) -> None:
        self._wake(self.by_uid if uids is None else uids)
        self._judge_unknown()

    def _settle(self) -> None:
        if not self._settled.is_set():
            self._settled.set()
            self._wake(self.by_uid)
            self._judge_unknown()

    def _wake(self, uids: Iterable[str]) -> None:
        for uid in list(uids):
            worker = self.by_uid.get(uid)
            if worker is not None:
                worker.wake()


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
    """Return the event to record for a status change; None: none, the status shows it."""
    if status.phase is Phase.FAILED and before.phase is not Phase.FAILED:
        return "warning", status.reason, status.message
    if status.phase is Phase.STOPPED and before.phase is not Phase.STOPPED and status.reason == DISCONNECTED:
        return "warning", status.reason, status.message
    if status.restarts > before.restarts and status.reason:
        return "warning", status.reason, status.message
    return None


async def _keep_no_log(unit: Unit) -> None:
    """The default of `AgentServices.finish_log`: no log is shipped."""
    return


def _placeholder(uid: str, node: str) -> Instance:
    """Return an instance for units without an order, sufficient to stop and remove them."""
    return Instance(
        meta=Meta(name=uid, namespace="default", uid=uid),
        spec=InstanceSpec(workload="unknown", release="unknown", index=0, node=node),
    )
