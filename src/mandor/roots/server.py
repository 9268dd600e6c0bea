"""The control plane as one process: store, API, scheduler, controllers."""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

import uvloop

from mandor import __version__
from mandor.api.app import build_app
from mandor.api.cluster import KEY
from mandor.api.gauges import ClusterGauges
from mandor.api.heartbeat import Heartbeats
from mandor.api.measures import Measures
from mandor.api.parts import ApiParts
from mandor.api.server import ApiServer, ServerTls, open_socket
from mandor.api.settings import ApiSettings
from mandor.baremetal.queue import TaskQueue
from mandor.baremetal.targets import read_targets
from mandor.controllers.measures import Measures as ControllerMeasures
from mandor.controllers.node_autoscale import MachineSource
from mandor.controllers.node_plan import NodeTimes
from mandor.controllers.roster import make_controllers
from mandor.controllers.runner import run_all
from mandor.errors import Invalid
from mandor.lib import logs
from mandor.lib.clock import Clock, SystemClock
from mandor.lib.garbage import collect_gently
from mandor.lib.ids import new_uid
from mandor.lib.loop_watch import LoopWatch
from mandor.lib.metrics import Metrics
from mandor.lib.process_metrics import process_families
from mandor.lib.quantity import NEVER
from mandor.lib.sealing import Sealer
from mandor.lib.tasks import Background
from mandor.model.features import FEATURES, features_of
from mandor.model.record import ServerSpec
from mandor.model.table_report import TableReport
from mandor.model.workload import Workload
from mandor.placement.framework.handle import DETACHED
from mandor.placement.plugin_source import GROUP
from mandor.roots import tasks
from mandor.roots.bootstrap import ensure_cluster, ensure_key_file, ensure_sealer
from mandor.roots.forecast import make_scheduling
from mandor.roots.inquiry import HttpInquiry
from mandor.roots.machines import Machines
from mandor.roots.messages import Messages
from mandor.roots.prometheus import Prometheus
from mandor.roots.recording import start_recording
from mandor.roots.settings import ServerSettings, load, loopback, split_address
from mandor.roots.simulation import Simulations
from mandor.roots.supervisor import Pulse, supervised
from mandor.roots.tracing import target_of, tracing
from mandor.scheduler.last_good import ProfilesOf
from mandor.scheduler.loop import Scheduler
from mandor.scheduler.reload import ConfigSource, Configured
from mandor.scheduler.territory import Pools, claim, election_of
from mandor.store.access import StoreAccess
from mandor.store.backups import Backups
from mandor.store.base import Store
from mandor.store.election import Election
from mandor.store.health import Health
from mandor.store.metered import MeteredStore
from mandor.store.open import open_store
from mandor.store.recorder import Recorder
from mandor.store.recording import check_recordable
from mandor.store.register import Register
from mandor.store.traced import TracedStore
from mandor.telemetry.tracer import Tracer

log = logging.getLogger("mandor.server")

CROWD = 16
BURST_SECONDS = 4
"""Whoever was quiet may send as many requests at once as are taken in so long."""


@dataclass(slots=True)
class Inside:
    """What one part of this process knows of another."""

    url: str
    """Where this server is reached."""
    scheduler: Scheduler | None = None
    """While it leads here."""
    backups: Backups | None = None
    """Those it makes by itself; None: it makes none."""
    health: Health | None = None
    """That of the store."""
    queue: TaskQueue | None = None
    """Through which tasks reach all servers; None: there is none."""
    metrics: Metrics = field(default_factory=Metrics)
    """What the parts of this process count, while they run."""
    measures: Measures = field(default_factory=Measures)
    """What the API of this process counts of itself."""
    everywhere: Callable[[], frozenset[str]] = frozenset
    """The features that all servers have."""
    tracer: Tracer | None = None
    """Keeps spans; None: nobody wants them."""

    def crowded(self) -> bool:
        """So many wait for an answer that what nobody waits for comes after them."""
        return self.measures.in_flight > CROWD

    def placing(self) -> bool:
        return self.scheduler is not None and self.scheduler.busy

    def troubles(self) -> tuple[str, ...]:
        of_store = () if self.health is None else self.health.ailments
        return (*of_store, *(each.trouble for each in (self.queue, self.backups) if each is not None and each.trouble))

    async def compare_table(self) -> TableReport | None:
        return await self.scheduler.compare_table() if self.scheduler is not None else None


Work = Callable[[Store, Clock, ServerSettings, Pulse, Inside], Awaitable[None]]


def run(settings: ServerSettings, *, dev: bool = False) -> None:
    """Serve until a signal. `dev` lets callers on this machine in without a token."""
    logs.set_up(settings.log_style, settings.log_level, server=settings.address or settings.listen)
    check_safe(settings)
    target_of(settings)  # a mistake is told before anything runs
    if settings.record:
        check_recordable(Path(settings.record))
    pulse = Pulse()
    if "scheduler" in settings.roles:
        if settings.plugins or entry_points(group=GROUP):
            pulse = supervised(float(settings.plugin_hang))
        Configured(_config_source(settings, pulse)).profiles(DETACHED)  # a mistake is told before anything runs
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(settings, dev=dev, pulse=pulse))


def check_safe(settings: ServerSettings) -> None:
    host, _ = split_address(settings.listen)
    if not loopback(host) and not settings.tls_cert:
        raise Invalid(
            f"refusing to listen on {host} without TLS",
            hint="give --tls-cert and --tls-key, or listen on 127.0.0.1",
        )


async def serve(settings: ServerSettings, *, dev: bool = False, pulse: Pulse | None = None) -> None:
    pulse = pulse or Pulse()
    told = _told_by_signal()
    clock = SystemClock()
    server_id = new_uid()[:10]
    with _listener(settings) as listener:
        url = settings.address or _url(listener, secure=bool(settings.tls_cert))
        inside = Inside(url)
        async with (
            tracing(target_of(settings), "mandor-server", server_id) as inside.tracer,
            await open_store(settings.store_url, access=store_access(settings)) as opened,
        ):
            inside.metrics.add(process_families)
            store = _observed(opened, settings, clock, inside)
            await _prepare(store, settings, dev=dev)
            inside.backups = _backups(settings, store, clock)
            inside.health = Health(opened, clock)
            inside.metrics.add(inside.health.families)
            register = Register(store, clock, server_id, _entry(settings, url))
            await register.enter()
            inside.everywhere = register.everywhere
            if "scheduler" in settings.roles:
                await claim(store, clock, _pools(settings))
            async with tasks.shared_queue(settings) as inside.queue, Background() as background:
                background.start(collect_gently(clock), "garbage")
                if inside.queue is not None:
                    background.start(tasks.work(store, clock, settings, inside.queue, inside.crowded), "tasks")
                background.start(register.run(), "register")
                background.start(inside.health.run(), "health")
                loop_watch = LoopWatch()
                inside.metrics.add(loop_watch.families)
                background.start(loop_watch.run(), "loop watch")
                if inside.backups is not None:
                    background.start(inside.backups.run(), "backups")
                for role, work in WORK.items():
                    if role in settings.roles:
                        name = election_of(_pools(settings)) if role == "scheduler" else role
                        seconds, door = float(settings.lease), opened.side_door()
                        election = Election(store, name, server_id, seconds, clock, address=url, side_door=door)
                        lead = partial(work, clock=clock, settings=settings, pulse=pulse, inside=inside)
                        background.start(election.run(lead), role)
                if "api" in settings.roles:
                    await _serve_api(
                        background, settings, store, clock, server_id, url, listener, told, pulse, inside, dev=dev
                    )
                else:
                    start_recording(background, settings, store, clock)
                    log.info("ready, without an API: %s", ", ".join(settings.roles))
                    await told.wait()
    log.info("ended")


def _entry(settings: ServerSettings, url: str) -> ServerSpec:
    """What this process tells of itself."""
    address = url if "api" in settings.roles else ""
    return ServerSpec(version=__version__, features=FEATURES, roles=tuple(settings.roles), address=address)


def _observed(opened: Store, settings: ServerSettings, clock: Clock, inside: Inside) -> Store:
    metered = MeteredStore(opened)
    inside.metrics.add(metered.metrics)
    if inside.tracer is None:
        return metered
    inside.metrics.add(inside.tracer.families)
    return TracedStore(metered, settings.store_url.partition(":")[0], clock.now)


async def _prepare(store: Store, settings: ServerSettings, *, dev: bool) -> None:
    cluster = await ensure_cluster(store)
    await ensure_key_file(store, settings.directory / "join.token", role="join", identity="join:first")
    if not dev:
        await ensure_key_file(store, settings.directory / "admin.token", role="admin", identity="user:admin")
    log.info("cluster %s, epoch %d, in %s", cluster.id, cluster.epoch, _shown(settings.store_url))


async def _serve_api(
    tasks: Background,
    settings: ServerSettings,
    store: Store,
    clock: Clock,
    server_id: str,
    url: str,
    listener: socket.socket,
    told: asyncio.Event,
    pulse: Pulse,
    inside: Inside,
    *,
    dev: bool,
) -> None:
    recorder = Recorder(store, f"server {server_id}", clock)
    heartbeats = Heartbeats(store, clock, server_id, url)
    api = api_settings(settings, url, tokens_required=not dev)
    features_of(Workload)  # it takes a while, and is known from then on
    sealer = _sealer(settings)
    gauges = ClusterGauges(store, heartbeats, clock)

    async def metrics() -> bytes:
        await gauges.prepare()
        return await inside.metrics.text()

    async with HttpInquiry() as inquire, gauges:
        parts = ApiParts(
            store=store,
            clock=clock,
            heartbeats=heartbeats,
            settings=api,
            recorder=recorder,
            scheduling=make_scheduling(_config_source(settings, pulse), inquire),
            everywhere=inside.everywhere,
            notes=pulse.notes,
            troubles=inside.troubles,
            compare_table=inside.compare_table,
            placing=inside.placing,
            metrics=metrics,
            measures=inside.measures,
            tracer=inside.tracer,
            sealer=sealer,
            spare_clusters=frozenset(read_targets(settings.pipelines)),
            try_receiver=Messages(store, clock, sealer).try_out,
            simulate=Simulations(),
        )
        inside.metrics.add(lambda: inside.measures.families(len(parts.streams)))
        inside.metrics.add(parts.turnstile.families)
        inside.metrics.add(gauges.families)
        tls = ServerTls(Path(settings.tls_cert), Path(settings.tls_key)) if settings.tls_cert else None
        server = ApiServer(build_app(parts), parts, listener, tls=tls)
        tasks.start(recorder.run(), "recorder")
        tasks.start(heartbeats.run(), "heartbeats")
        start_recording(tasks, settings, store, clock, lambda: [each.instances for each in heartbeats.all_usage()])
        serving = tasks.start(server.serve(), "api")
        waiting = tasks.start(told.wait(), "signal")
        log.info("ready at %s", url)
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        server.stop()
        await serving


def api_settings(settings: ServerSettings, url: str, *, tokens_required: bool) -> ApiSettings:
    return ApiSettings(
        address=url,
        tokens_required=tokens_required,
        image_bytes_most=int(settings.image_most),
        requests_per_second=float(settings.requests_each),
        requests_burst=settings.requests_each * BURST_SECONDS,
        watches_most=settings.streams_most,
        watches_each=settings.streams_each,
        credential_age_seconds=float(settings.credential_age),
    )


async def _schedule(store: Store, clock: Clock, settings: ServerSettings, pulse: Pulse, inside: Inside) -> None:
    recorder = Recorder(store, "scheduler", clock)
    source = _config_source(settings, pulse).once()
    await asyncio.to_thread(source.read)  # Files, and what is installed: nobody waits for that.
    configured = Configured(source)
    pause = configured.pause()
    pools = _pools(settings)
    await claim(store, clock, pools)  # Others may have come while somebody else led.
    async with HttpInquiry() as inquire, Background() as tasks:
        tasks.start(recorder.run(), "recorder")
        scheduler = Scheduler(
            store,
            clock,
            recorder,
            profiles=configured.profiles,
            pause=pause,
            inquire=inquire,
            watchdog=pulse.watchdog(),
            pools=pools,
            tracer=inside.tracer,
        )
        await _tell_disabled(store, recorder, pulse)
        tasks.start(configured.follow(clock, scheduler.use), "configuration")
        inside.scheduler = scheduler
        forget = inside.metrics.add(scheduler.metrics)
        try:
            await scheduler.run()
        finally:
            inside.scheduler = None
            forget()


def _backups(settings: ServerSettings, store: Store, clock: Clock) -> Backups | None:
    if not settings.backup_dir:
        return None
    folder, every = Path(settings.backup_dir).absolute(), float(settings.backup_every)
    return Backups(store, clock, folder, every_seconds=every, keep=settings.backup_keep)


def _pools(settings: ServerSettings) -> Pools:
    return frozenset(settings.pools) or None


async def _tell_disabled(store: Store, recorder: Recorder, pulse: Pulse) -> None:
    cluster = await store.get(KEY)
    for note in pulse.notes:
        log.error("%s", note)
        if cluster is not None:
            recorder.note(cluster, "PluginDisabled", note, type="warning")


def _config_source(settings: ServerSettings, pulse: Pulse) -> ConfigSource:
    return ConfigSource(
        Path(settings.scheduler_config).absolute() if settings.scheduler_config else None,
        Path(settings.plugins).absolute() if settings.plugins else None,
        disabled=pulse.disabled,
        found=pulse.found,
    )


async def _control(store: Store, clock: Clock, settings: ServerSettings, pulse: Pulse, inside: Inside) -> None:
    recorder = Recorder(store, "controllers", clock)
    times = NodeTimes(
        suspect_seconds=settings.suspect_after, lost_seconds=settings.lost_after, mass_share=settings.mass_fraction
    )
    prometheus = Prometheus(settings.prometheus)
    machines = Machines(store, clock, settings.machine_servers or (inside.url,), settings.machine_ca)
    controllers = make_controllers(
        store,
        clock,
        recorder,
        times=times,
        profiles=ProfilesOf(_config_source(settings, pulse)),
        restore_seconds=settings.restore_after if settings.restore_after != NEVER else None,
        guard=pulse.watchdog,
        ask=prometheus.ask,
        machines=MachineSource(machines.provisioner, machines.join),
    )
    measures = ControllerMeasures()
    forget = inside.metrics.add(measures.families)
    try:
        async with prometheus, machines, Background() as tasks:
            tasks.start(recorder.run(), "recorder")
            tasks.start(Messages(store, clock, _sealer(settings)).run(recorder), "messages")
            await run_all(controllers, store, clock, measures=measures, tracer=inside.tracer)
    finally:
        forget()


def _sealer(settings: ServerSettings) -> Sealer:
    return ensure_sealer(settings.secrets_key_file, given=bool(settings.secrets_key))


async def _tasks(store: Store, clock: Clock, settings: ServerSettings, pulse: Pulse, inside: Inside) -> None:
    await tasks.lead(store, clock, settings, inside.queue, inside.crowded)


WORK = {"scheduler": _schedule, "controllers": _control, "tasks": _tasks}


@contextlib.contextmanager
def _listener(settings: ServerSettings) -> Iterator[socket.socket]:
    host, port = split_address(settings.listen)
    with open_socket(host, port) as listener:
        yield listener


def _url(listener: socket.socket, *, secure: bool) -> str:
    host, port = listener.getsockname()[:2]
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def store_access(settings: ServerSettings) -> StoreAccess:
    password = Path(settings.store_password_file).read_text().strip() if settings.store_password_file else ""
    return StoreAccess(
        ca=settings.store_ca,
        cert=settings.store_cert,
        key=settings.store_key,
        user=settings.store_user,
        password=password,
    )


def _shown(url: str) -> str:
    """A store's URL without a password, should someone have put one there."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if "@" in rest else url


def _told_by_signal() -> asyncio.Event:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    return told


def main() -> None:
    """`python -m mandor.roots.server`: what `mandor dev` starts."""
    parser = argparse.ArgumentParser(prog="mandor-server")
    parser.add_argument("--dev", action="store_true")
    parser.add_argument("--data")
    parser.add_argument("--listen")
    parser.add_argument("--scheduler-config")
    parser.add_argument("--plugins")
    parser.add_argument("--record")
    parser.add_argument("--otlp-traces")
    parser.add_argument("--trace-share")
    flags = vars(parser.parse_args())
    dev = bool(flags.pop("dev"))
    run(load(ServerSettings, "server", environ=os.environ, flags=flags), dev=dev)


if __name__ == "__main__":
    main()
