"""The agent: makes one node match its orders, and keeps doing so without a control plane."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mandor.agent.cluster_contact import ClusterContact, OwnClusterStore
from mandor.agent.eviction import PressureEviction
from mandor.agent.feed import Feed, KindRouter, Reader, Source
from mandor.agent.fingerprint import boot_id
from mandor.agent.foreign_ports import PortInUse, no_port_in_use
from mandor.agent.forward import PortForwarder
from mandor.agent.guard import GuardControl
from mandor.agent.heartbeat import HeartbeatSender
from mandor.agent.image import ImageLoader
from mandor.agent.journal import Blocking, Journal
from mandor.agent.link import Link
from mandor.agent.live_files import LiveFileKeeper
from mandor.agent.machine import EngineDisks, Machine, ThisMachine
from mandor.agent.metrics import node_families, unit_families
from mandor.agent.name_keeper import NameServer
from mandor.agent.node import NodeKeeper
from mandor.agent.node_instances import NodeInstances
from mandor.agent.pressure import Reading
from mandor.agent.probes import RunProbe, run_probe
from mandor.agent.renewal import CertificateKeeper, CredentialKeeper
from mandor.agent.settings import AgentSettings
from mandor.agent.shipping.agent_logs import AgentLogHandler
from mandor.agent.shipping.shipper import Shipper
from mandor.agent.stream import Streams, choose_task
from mandor.agent.tracing import Tracing
from mandor.agent.traffic import Balancing, TrafficKeeper
from mandor.agent.traffic_metrics import traffic_families
from mandor.agent.traffic_report import TrafficReporter
from mandor.agent.usage import InstanceMeter, read_usage
from mandor.agent.usage_throttle import used_by_all, used_by_own
from mandor.agent.workers import Workers
from mandor.engines.base import Engine, Unit, Usage
from mandor.errors import Conflict, Forbidden, Invalid, MandorError, NotFound, Unauthenticated, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.egress import Egress
from mandor.lib.metrics import Family, Values
from mandor.lib.secret_files import SecretFiles
from mandor.lib.tasks import Background
from mandor.model.instance import Instance
from mandor.model.log_sink import LogSink
from mandor.model.meta import Object
from mandor.model.network import Network
from mandor.model.node import CLOCK_AHEAD, RENEWS, Node
from mandor.model.phase import Phase
from mandor.model.record import ClusterSpec, Namespace, Session, SessionSpec
from mandor.model.usage import InstanceUsage, NodeUsage
from mandor.model.volume import HOST_PATHS, Volume
from mandor.model.workload import Release, Workload
from mandor.network.base import Overlay
from mandor.network.forward_plan import ForwardTarget, forward_targets
from mandor.store.base import ALL, Change, Filter, Store
from mandor.store.recorder import Recorder
from mandor.telemetry.tracer import Tracer

log = logging.getLogger(__name__)

REFUSALS = (Conflict, Forbidden, Invalid, Unauthenticated)
REPEAT_EVERY = 30
"""Number of failures after which the same message is logged again."""
AHEAD_STEP = 5
"""Step in seconds in which the clock's lead is reported, so that small changes do not cause a write."""


class Agent:
    """Runs the parts of an agent: joins the cluster, sends heartbeats, runs orders and reports their status."""

    def __init__(
        self,
        settings: AgentSettings,
        store: Store,
        link: Link,
        engines: Mapping[str, Engine],
        clock: Clock,
        *,
        journal: Journal | None = None,
        blocking: Blocking = asyncio.to_thread,
        boot: str | None = None,
        locate: Callable[[], str] | None = None,
        port_in_use: PortInUse = no_port_in_use,
        machine: Machine | None = None,
        run_probe: RunProbe = run_probe,
        clock_ahead: Callable[[], float] = lambda: 0.0,
        own_logs: AgentLogHandler | None = None,
        tracer: Tracer | None = None,
        guard_control: GuardControl | None = None,
        balancing: Balancing | None = None,
        name_server: NameServer | None = None,
        overlay: Overlay | None = None,
    ) -> None:
        """
        `port_in_use`: returns whether a port of this machine is in use; by default, none is.
        `machine`: the machine of the node; by default, the one that this process runs on.
        `run_probe`: runs one probe.
        `clock_ahead`: returns by how many seconds this machine's clock is ahead of the servers'.
        `own_logs`: the agent's log records, for log sinks; None: no logs are shipped, neither the agent's nor tasks'.
        `tracer`: records spans of instances that are part of a trace; None: none are recorded.
        `guard_control`: starts a process that stops instances with `stop_after` when the agent is gone; None: no guard.
        `balancing`: the data path of services; None: the node balances none.
        `name_server`: the name server of the node; None: instances find names in hosts files only.
        `overlay`: the data path of networks that span nodes; None: the node has none.
        """
        self._settings, self._link, self._clock, self._clock_ahead = settings, link, clock, clock_ahead
        self._shared = settings.shared
        self._machine = machine or ThisMachine(clock, settings.data)
        self._engines = dict(engines)
        self._journal = journal or Journal(settings.data)
        self.contact = ClusterContact(self._journal, clock, boot_id() if boot is None else boot)
        store = self._store = OwnClusterStore(store, lambda: self.contact.foreign)
        self._recorder = Recorder(store, f"agent {settings.name}", clock)
        self.node = NodeKeeper(
            settings,
            store,
            engines,
            clock,
            extra=self._extra_facts,
            changed=self._node_changed,
            join=self._join_once,
            locate=locate,
            port_in_use=port_in_use,
            engine_changed=self._engine_changed,
            machine=self._machine,
        )
        self.workers = Workers(
            settings,
            store,
            self._engines,
            clock,
            self._journal,
            self.contact,
            self._recorder,
            blocking,
            self.node,
            self._machine,
            link,
            self._read_cluster,
            run_probe,
            Tracing(tracer) if tracer is not None else None,
            guard_control,
            LiveFileKeeper(settings.data, settings.name, blocking) if machine is None else None,
            balancing,
            name_server,
            overlay,
        )
        if self.workers.resources.networks is not None:
            self.node.with_networks = self.workers.resources.networks.with_networks
        self._metrics, self._tracer = self.workers.services.metrics, tracer
        self._credential = CredentialKeeper(
            link, clock, lambda: self.node.spec.renewal, self._metrics.credential_renewals
        )
        self._certificate = CertificateKeeper(link, clock, self._metrics.certificate_renewals)
        loader = ImageLoader(self._engines, lambda: self.node.engines, self.node.refresh)
        self.eviction = PressureEviction(
            settings.thresholds,
            self._readings,
            NodeInstances(self.workers, self._engines.values()),
            clock,
            changed=self.node.wake,
            look_seconds=settings.look_seconds,
            cleaned=self._image_cleaned,
        )
        self._disks = EngineDisks(self._engines.values(), clock)
        self.node.pressure = lambda: self.eviction.shown
        self._own_memory: int | None = None
        self._last_usage = NodeUsage()
        more = {
            "forward": PortForwarder(self._find_port).serve,
            "traffic": TrafficReporter(settings.name, self._traffic).serve,
        }
        self.streams = Streams(link, self._find_unit, loader.serve, most=settings.sessions_most, more=more)
        self._meter = InstanceMeter(clock)
        self._shipper = self._make_shipper(own_logs, blocking) if own_logs is not None else None
        self.joined = asyncio.Event()
        self._logged = ""

    def _make_shipper(self, own: AgentLogHandler, blocking: Blocking) -> Shipper:
        settings = self._settings
        shipper = Shipper(
            settings.name,
            settings.data / "logs",
            self._store,
            self._clock,
            blocking,
            own,
            log_sources=self.workers.log_sources,
            folders=[Path(each) for each in settings.host_paths],
            health_changed=self.node.wake,
            egress=Egress(settings.egress_allow),
            files=SecretFiles(settings.secret_files),
        )
        self.node.log_sinks = shipper.health
        self.workers.services.finish_log = shipper.finish
        return shipper

    async def run(self) -> None:
        """Run until cancelled. Raise only if the node is refused before it has ever belonged to a cluster."""
        if self.workers.resources.networks is not None:
            await self.workers.resources.networks.begin()
        await self.node.look()
        refusal: MandorError | None = None
        async with Background() as tasks:
            self.workers.begin(tasks)
            tasks.start(self._recorder.run(), "events")
            if self._shipper is not None:
                tasks.start(self._shipper.run(), "logs")
            tasks.start(self.workers.settle_after(self._settings.news_seconds), "news")
            try:
                refusal = await self._join()
                if refusal is None:
                    # Instances with `stop_after` are judged by silence: send a heartbeat before orders are read.
                    heartbeats = self._make_heartbeat_sender()
                    pause = await heartbeats.send()
                    tasks.start(heartbeats.run(pause), "heartbeat")
                    for work, name in self._duties():
                        tasks.start(work, name)
                    await tasks.wait()
            finally:
                await self.streams.close()
                await self.workers.close()
        if refusal is not None:
            raise refusal

    def _make_heartbeat_sender(self) -> HeartbeatSender:
        return HeartbeatSender(
            self._link,
            self.contact,
            self._machine.usage,
            self._clock,
            seconds=self._settings.heartbeat_seconds,
            instances=self._usage,
            measured=self._measured,
            answered=self._answered,
        )

    def _duties(self) -> list[tuple[Any, str]]:
        resources, found = self.workers.resources, self.workers.resources.names
        readers: dict[str, Reader] = {
            Instance.kind: self,
            Node.kind: self.node,
            Session.kind: self.streams,
            Volume.kind: resources.volumes,
        }
        where = Filter(node=self._settings.name, kinds=frozenset(readers), supplies=True)
        readers |= dict.fromkeys((Release.kind, Workload.kind, Namespace.kind), resources.fetch)
        stall = self._settings.stall_seconds
        feed = Feed(self._store, None, where, self._clock, KindRouter(readers), self._read_cluster, stall_seconds=stall)
        shipping = []
        if self._shipper is not None:
            sinks = Feed(
                self._store, LogSink.kind, ALL, self._clock, self._shipper, self._read_cluster, stall_seconds=stall
            )
            shipping = [(sinks.run(), f"feed of {LogSink.plural}")]
        names = []
        if resources.networks is not None:
            watched = Feed(
                self._store, Network.kind, ALL, self._clock, resources.networks, self._read_cluster, stall_seconds=stall
            )
            shipping += [(watched.run(), f"feed of {Network.plural}"), (resources.networks.run(), "networks")]
        if found is not None:
            names = [(found.watch.run(), "services and names"), (found.hosts_files.run(), "hosts files")]
            names.append((found.drains.run(), "drains"))
            if found.traffic is not None:
                names.append((found.traffic.run(), "traffic"))
                names.append((found.traffic.checks.run(), "checks of external addresses"))
            if found.name_server is not None:
                names.append((found.name_server.run(), "name server"))
        return [
            (self.node.run(), "node"),
            (self._credential.run(), "credential"),
            (resources.identities.run(), "identities"),
            (self._certificate.run(), "certificate"),
            (self.eviction.run(), "eviction"),
            (self._disks.run(), "disks"),
            (resources.volumes.run(), "volumes"),
            *names,
            *shipping,
            (feed.run(), "feed"),
        ]

    async def _join_once(self) -> None:
        self.contact.check(await self._link.join())
        self.joined.set()
        self._credential.wake()
        self._certificate.wake()
        log.info("node %s has joined the cluster", self._settings.name)

    async def _join(self) -> MandorError | None:
        """Retry until the node has joined; return the refusal if it never belonged to a cluster and runs nothing."""
        failures = 0
        while True:
            try:
                await self._join_once()
                return None
            except MandorError as error:
                failures += 1
                if isinstance(error, REFUSALS) and self.contact.membership is None and not self.workers.by_uid:
                    return error
                self._log_failure(f"node {self._settings.name} cannot join the cluster", error, failures)
            await self._clock.sleep(Backoff(0.5, 10, jitter=0.3).pause(failures))

    async def _read_cluster(self) -> ClusterSpec:
        found = await self._link.cluster()
        self.contact.check(found)
        return found

    # Reader of the feed of instances.

    def listed(self, items: Sequence[Object], source: Source) -> None:
        orders = [each for each in items if self._mine(each)]
        try:
            self.contact.check_revision(source.revision)
        except Unavailable:
            self.workers.missing_in(orders, source)
            self._link.leave_server()
            raise
        self.workers.listed(orders, source)

    def changed(self, change: Change, source: Source) -> None:
        before, after = change.before, change.after
        self.contact.saw_revision(change.revision)
        if isinstance(after, Instance) and self._mine(after):
            self.workers.ordered(after, source)
        if isinstance(before, Instance) and (after is None or after.meta.uid != before.meta.uid):
            self.workers.missing(before.meta.uid, source)

    def lost(self, error: MandorError, failures: int) -> None:
        self._log_failure("cannot watch orders", error, failures)

    def _log_failure(self, what: str, error: MandorError, failures: int) -> None:
        """Log a failure; one that repeats is logged once, and then every `REPEAT_EVERY` times."""
        message = f"{what}: {error}; {error.hint or 'running instances are not affected'}"
        if message != self._logged or failures % REPEAT_EVERY == 0:
            self._logged = message
            log.log(logging.ERROR if isinstance(error, REFUSALS) else logging.WARNING, "%s", message)

    def _mine(self, value: Object) -> bool:
        """Return whether the order is for this node and is to be run; a claim only reserves resources."""
        mine = isinstance(value, Instance) and value.spec.node == self._settings.name
        if mine and value.spec.claim is not None:
            return False
        if not mine:
            log.error("ignoring order %s: it is for node %r, not for this one", value.key, value.node)
        return mine

    # The node's object.

    def _node_changed(self) -> None:
        self.workers.allow(self.node.allocatable, self.node.spec.forget_before_epoch, self.node.engines)
        if self.node.spec.renewal is not None:
            self._credential.wake()

    def _engine_changed(self, node: Node, name: str) -> None:
        engine = node.status.engines[name]
        if engine.up:
            self._recorder.note(node, "EngineUp", f"engine {name} answers again")
        else:
            self._recorder.note(node, "EngineDown", f"engine {name} does not answer: {engine.message}", type="warning")

    def _image_cleaned(self, name: str) -> None:
        message = f"removed image {name} to free disk space: no instance on this node uses it"
        log.info("%s", message)
        if self.node.value is not None:
            self._recorder.note(self.node.value, "ImageCleaned", message)

    def _extra_facts(self) -> Mapping[str, str]:
        found = {RENEWS: "yes"}
        if self._settings.host_paths:
            found[HOST_PATHS] = ",".join(self._settings.host_paths)
        if clock_ahead := AHEAD_STEP * round(self._clock_ahead() / AHEAD_STEP):
            found[CLOCK_AHEAD] = str(clock_ahead)
        if held := self.workers.held():
            shown = ", ".join(held[:10]) + (f" and {len(held) - 10} more" if len(held) > 10 else "")
            found["held"] = f"{len(held)}: {shown}"
        return found

    async def _usage(self) -> dict[str, InstanceUsage]:
        return await self._meter.read(self._engines.values(), self.workers.names(), self.workers.ready())

    def _readings(self) -> Sequence[Reading]:
        """Return how much is left of each resource; a node that is part of its machine has its own memory reading."""
        found = [*self._machine.readings(), *self._disks.readings()]
        has = self.node.capacity.memory_bytes
        if self._shared and self._own_memory is not None and has:
            found.append(Reading("memory", max(0, has - self._own_memory), has))
        return found

    def _measured(self, machine: NodeUsage, instances: Mapping[str, InstanceUsage]) -> None:
        self._last_usage = machine
        if not self._shared:
            self.node.measured(used_by_all(machine), instances)
            return
        own = used_by_own(instances)
        self._own_memory = own.memory_bytes
        self.node.measured(own, instances)

    def _answered(self, result: str) -> None:
        self._metrics.heartbeats[(result,)] += 1

    async def metrics(self) -> list[Family]:
        """Return the metrics of the agent, its machine and its instances."""
        workers = self.workers.by_uid
        used: dict[Unit, tuple[Instance, str, Usage]] = {}
        for engine in self._engines.values():
            for unit, usage in (await read_usage(engine)).items():
                if unit.uid in workers:
                    used[unit] = workers[unit.uid].order.instance, engine.name, usage
        phases: Counter[Values] = Counter((each.status.phase.value,) for each in workers.values())
        node = node_families(self.node.engines, self.eviction.shown, self._last_usage, phases)
        shipping = self._shipper.families() if self._shipper is not None else ()
        spans = self._tracer.families() if self._tracer is not None else ()
        traffic = self._traffic()
        services = await traffic_families(traffic) if traffic is not None else ()
        return [*self._metrics.families(), *node, *unit_families(used), *shipping, *spans, *services]

    def _find_unit(self, uid: str, task: str) -> tuple[Engine, Unit]:
        worker = self.workers.by_uid.get(uid)
        if worker is None or not worker.memory.tasks:
            raise NotFound("no task of this instance has run on this node yet")
        template = worker.order.template
        tasks = list(template.tasks) if template is not None else list(worker.memory.tasks)
        mains = [name for name in tasks if template is None or template.tasks[name].role == "main"]
        name = choose_task(task, mains, tasks)
        return self.workers.engines.engine(worker.memory.engine), self.workers.latest(worker, name)

    def _traffic(self) -> TrafficKeeper | None:
        names = self.workers.resources.names
        return names.traffic if names is not None else None

    def _find_port(self, spec: SessionSpec) -> list[ForwardTarget]:
        worker = self.workers.by_uid.get(spec.uid)
        if worker is None or worker.status.phase is not Phase.RUNNING:
            raise NotFound(f"{spec.instance} is not running", hint="`mandor describe instance` shows its phase")
        return forward_targets(spec.instance, worker.status, spec.port)
