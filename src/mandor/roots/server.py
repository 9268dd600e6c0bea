"""Runs the control plane as one process: store, API, scheduler, controllers."""

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

import uvloop

from mandor import __version__
from mandor.api.app import build_app
from mandor.api.auth import Auth
from mandor.api.certificates import CertificateAuthority
from mandor.api.cluster import KEY
from mandor.api.gauges import ClusterGauges
from mandor.api.heartbeat import Heartbeats
from mandor.api.http.request_metrics import RequestMetrics
from mandor.api.http.server import ApiServer, ServerTls, open_socket
from mandor.api.issuers import Issuers
from mandor.api.parts import ApiParts
from mandor.api.secret_keys import FEATURE, Keys
from mandor.api.settings import ApiSettings
from mandor.api.user_range import ensure_users
from mandor.baremetal.queue import VmRequestQueue
from mandor.baremetal.targets import read_targets
from mandor.controllers.audit import AuditKeeper
from mandor.controllers.audit_export import AuditExporter
from mandor.controllers.audit_plan import KeepAudits
from mandor.controllers.catalog import make_controllers
from mandor.controllers.measures import Measures as ControllerMeasures
from mandor.controllers.node_plan import NodeTimes
from mandor.controllers.runner import run_all
from mandor.errors import Invalid, MandorError
from mandor.lib import logs
from mandor.lib.clock import Clock, SystemClock
from mandor.lib.egress import LOOPBACK, STRICT, Egress
from mandor.lib.garbage import collect_gently
from mandor.lib.ids import new_uid
from mandor.lib.loop_watch import LoopWatch
from mandor.lib.metrics import Metrics
from mandor.lib.process_metrics import process_families
from mandor.lib.quantity import NEVER
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.lib.tasks import Background, single_error
from mandor.model.features import FEATURES, features_of
from mandor.model.record import ServerSpec
from mandor.model.table_report import TableReport
from mandor.model.workload import Workload
from mandor.placement.framework.handle import DETACHED
from mandor.placement.plugin_source import GROUP
from mandor.roots import tasks
from mandor.roots.acme import certificate_controller, check_acme
from mandor.roots.audit import AuditSinks
from mandor.roots.certificates import ServerCertificates, advertised_host, host_names, own_authority
from mandor.roots.forecast import make_scheduling
from mandor.roots.inquiry import HttpInquiry
from mandor.roots.key_files import KeyFiles
from mandor.roots.machines import Machines
from mandor.roots.messages import Messages
from mandor.roots.oidc import HttpFetch, default_issuer
from mandor.roots.preparation import check_store, prepare, remembered_of
from mandor.roots.private_files import SERVER_FILES, check_private_files
from mandor.roots.prometheus import Prometheus
from mandor.roots.recording import start_recording
from mandor.roots.settings import ServerSettings, load, split_address
from mandor.roots.simulation import Simulations
from mandor.roots.supervisor import Pulse, supervised
from mandor.roots.tracing import target_of, tracing
from mandor.scheduler.last_config import ConfiguredProfiles
from mandor.scheduler.loop import Scheduler
from mandor.scheduler.pool_ownership import Pools, claim, election_of
from mandor.scheduler.reload import ConfigSource, Configured
from mandor.store.access import StoreAccess
from mandor.store.backups import Backups
from mandor.store.base import Store
from mandor.store.election import Election
from mandor.store.health import StoreHealth
from mandor.store.marked import MarkedStore
from mandor.store.marker import MarkerContent
from mandor.store.metered import MeteredStore
from mandor.store.open import open_store
from mandor.store.recorder import Recorder
from mandor.store.recording import check_recordable
from mandor.store.server_registry import ServerRegistry
from mandor.store.traced import TracedStore
from mandor.telemetry.tracer import Tracer

log = logging.getLogger("mandor.server")

CROWD = 16
BURST_SECONDS = 4
"""Seconds of a caller's request rate that it may send at once after a pause."""


@dataclass(slots=True)
class ServerState:
    """State that the parts of this process share."""

    url: str
    """URL of this server."""
    dev: bool = False
    """`mandor dev`: all parts run on this machine."""
    egress: Egress = STRICT
    files: SecretFiles = NO_FILES
    scheduler: Scheduler | None = None
    """The scheduler, while it leads here."""
    backups: Backups | None = None
    """Automatic backups; None: off."""
    health: StoreHealth | None = None
    """Health of the store."""
    queue: VmRequestQueue | None = None
    """Queue of VM requests that reaches all servers; None: there is none."""
    metrics: Metrics = field(default_factory=Metrics)
    """Metrics of the parts of this process."""
    request_metrics: RequestMetrics = field(default_factory=RequestMetrics)
    """Metrics of the API of this process."""
    keys: Keys | None = None
    """Keys of secrets."""
    everywhere: Callable[[], frozenset[str]] = frozenset
    """Features that all servers have."""
    tracer: Tracer | None = None
    """Records spans; None: tracing is off."""
    authority: CertificateAuthority | None = None
    """Issues certificates; None for `mandor dev`."""
    certificates: ServerCertificates | None = None
    """Keeps this server's own certificate; None: plain HTTP."""

    def fingerprint(self) -> str:
        """Return the fingerprint of the authority that issued the certificate which this server presents; empty:
        another authority issued it."""
        found = self.authority
        if found is None or not found.serves:
            return ""
        presented = self.certificates.presented if self.certificates is not None else ""
        return presented or found.fingerprint

    def crowded(self) -> bool:
        """Return whether so many requests wait that background work is delayed."""
        return self.request_metrics.in_flight > CROWD

    def placing(self) -> bool:
        return self.scheduler is not None and self.scheduler.busy

    def troubles(self) -> tuple[str, ...]:
        of_store = () if self.health is None else self.health.problems
        return (
            *of_store,
            *(each.trouble for each in (self.queue, self.backups, self.keys) if each is not None and each.trouble),
        )

    async def compare_table(self) -> TableReport | None:
        return await self.scheduler.compare_table() if self.scheduler is not None else None


Work = Callable[[Store, Clock, ServerSettings, Pulse, ServerState], Awaitable[None]]


def run(settings: ServerSettings, *, dev: bool = False) -> None:
    """Serve until a signal. `dev`: callers on this machine need no token."""
    logs.set_up(settings.log_style, settings.log_level, server=settings.address or settings.listen)
    target_of(settings)  # errors are reported before anything starts
    if not dev:  # `mandor dev` admits every user of this machine anyway
        check_private_files(settings.directory, (settings.secrets_key_file.absolute(), *SERVER_FILES))
    _allow_files()
    check_acme(settings)
    if settings.record:
        check_recordable(Path(settings.record))
    pulse = Pulse()
    if "scheduler" in settings.roles:
        if settings.plugins or entry_points(group=GROUP):
            pulse = supervised(float(settings.plugin_hang))
        Configured(_config_source(settings, pulse)).profiles(DETACHED)  # errors are reported before anything starts
    with contextlib.suppress(KeyboardInterrupt), single_error():
        uvloop.run(serve(settings, dev=dev, pulse=pulse))


def _allow_files() -> None:
    """Raise the limit of open files to the maximum: every connection is an open file."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def serve(settings: ServerSettings, *, dev: bool = False, pulse: Pulse | None = None) -> None:
    pulse = pulse or Pulse()
    stopping = _until_signal()
    clock = SystemClock()
    server_id = new_uid()[:10]
    remembered = remembered_of(settings)
    with _listener(settings) as listener:
        url = settings.address or _url(listener, secure=settings.secure)
        allowed = (*settings.egress_allow, *LOOPBACK) if dev else settings.egress_allow
        inside = ServerState(url, dev=dev, egress=Egress(allowed), files=SecretFiles(settings.secret_files))
        async with (
            tracing(target_of(settings), "mandor-server", server_id) as inside.tracer,
            await open_store(settings.store_url, access=store_access(settings, remembered)) as opened,
            MarkedStore(opened) as marked,
        ):
            inside.metrics.add(process_families)
            store = _observed(marked, settings, clock, inside)
            await check_store(store, settings, remembered)
            cluster, inside.keys = await prepare(store, settings, marked, remembered, dev=dev)
            inside.backups = _backups(settings, store, clock)
            inside.health = StoreHealth(marked, clock)
            inside.metrics.add(inside.health.families)
            register = ServerRegistry(store, clock, server_id, _entry(settings, url, inside.keys))
            await register.enter()
            inside.everywhere, inside.keys.living = register.everywhere, register.living
            if FEATURE in register.everywhere():
                await inside.keys.begin(clock.now())
            if "scheduler" in settings.roles:
                await claim(store, clock, _pools(settings))
            async with tasks.shared_queue(settings) as inside.queue, Background() as background:
                background.start(collect_gently(clock), "garbage")
                if inside.queue is not None:
                    background.start(tasks.work(store, clock, settings, inside.queue, inside.crowded), "tasks")
                background.start(register.run(), "register")
                background.start(marked.run(), "marker")
                background.start(_ensure_users(store, clock, register), "user ids")
                background.start(inside.keys.run(), "keys of secrets")
                if dev:
                    files = KeyFiles(store, clock, settings.directory, admin=False)
                    await files.try_keep()
                    background.start(files.run(), "token files")
                else:
                    await _certify(background, store, clock, settings, inside, cluster.id)
                background.start(inside.health.run(), "health")
                loop_watch = LoopWatch()
                inside.metrics.add(loop_watch.families)
                background.start(loop_watch.run(), "loop watch")
                if inside.backups is not None:
                    background.start(inside.backups.run(), "backups")
                for role, work in WORK.items():
                    if role in settings.roles:
                        name = election_of(_pools(settings)) if role == "scheduler" else role
                        seconds, channel = float(settings.lease), opened.lease_channel()
                        election = Election(store, name, server_id, seconds, clock, address=url, lease_channel=channel)
                        lead = partial(work, clock=clock, settings=settings, pulse=pulse, inside=inside)
                        background.start(election.run(lead), role)
                if "api" in settings.roles:
                    await _serve_api(
                        background, settings, store, clock, server_id, url, listener, stopping, pulse, inside, dev=dev
                    )
                else:
                    start_recording(background, settings, store, clock)
                    log.info("ready without an API; roles: %s", ", ".join(settings.roles))
                    await stopping.wait()
    log.info("ended")


def _entry(settings: ServerSettings, url: str, keys: Keys) -> ServerSpec:
    """Return the server object of this process."""
    address = url if "api" in settings.roles else ""
    return ServerSpec(
        version=__version__, features=FEATURES, roles=tuple(settings.roles), address=address, keys=keys.master_ids
    )


def _observed(opened: Store, settings: ServerSettings, clock: Clock, inside: ServerState) -> Store:
    metered = MeteredStore(opened)
    inside.metrics.add(metered.metrics)
    if inside.tracer is None:
        return metered
    inside.metrics.add(inside.tracer.families)
    return TracedStore(metered, settings.store_url.partition(":")[0], clock.now)


async def _certify(
    background: Background, store: Store, clock: Clock, settings: ServerSettings, inside: ServerState, cluster: str
) -> None:
    """Create the cluster's authority, this server's certificate, and the first tokens, which carry its fingerprint."""
    assert inside.keys is not None
    authority = CertificateAuthority(
        store,
        clock,
        inside.keys.ring,
        own=own_authority(settings),
        node_seconds=float(settings.certificate_life),
        serves=not settings.tls_cert and (settings.secure or "api" not in settings.roles),
        everywhere=inside.everywhere,
    )
    await authority.ensure(cluster)
    inside.authority = authority
    files = KeyFiles(store, clock, settings.directory, admin=True, fingerprint=inside.fingerprint)
    await files.try_keep()
    background.start(files.run(), "token files")
    if not settings.secure:
        return
    if not authority.ready and authority.serves:
        raise Invalid(
            "this server cannot issue its own certificate",
            hint="upgrade the other servers first, set --ca-cert and --ca-key as on these servers, or set "
            "--tls-cert and --tls-key",
        )
    inside.certificates = ServerCertificates(authority, clock, settings.directory / "tls", host_names(settings))
    if authority.ready:
        inside.certificates.begin()
    inside.metrics.add(inside.certificates.families)
    background.start(inside.certificates.run(cluster), "certificates")


async def _ensure_users(store: Store, clock: Clock, register: ServerRegistry) -> None:
    """Assign user ids to older namespaces, once every server supports them."""
    while True:
        if "namespace-levels" in register.everywhere():
            try:
                return await ensure_users(store)
            except MandorError as error:
                log.warning("cannot assign user ids to namespaces, retrying: %s", error)
        await clock.sleep(1.0)


async def _serve_api(
    tasks: Background,
    settings: ServerSettings,
    store: Store,
    clock: Clock,
    server_id: str,
    url: str,
    listener: socket.socket,
    stopping: asyncio.Event,
    pulse: Pulse,
    inside: ServerState,
    *,
    dev: bool,
) -> None:
    recorder = Recorder(store, f"server {server_id}", clock)
    heartbeats = Heartbeats(store, clock, server_id, url)
    api = api_settings(settings, url, tokens_required=not dev)
    features_of(Workload)  # slow the first time, cached afterwards
    sealer = inside.keys.ring if inside.keys is not None else None
    gauges = ClusterGauges(store, heartbeats, clock)

    async def metrics() -> bytes:
        await gauges.prepare()
        return await inside.metrics.text()

    async with HttpInquiry() as inquire, HttpFetch() as fetch, gauges:
        authority = inside.authority if settings.secure else None
        issuers = Issuers(store, clock, fetch, default_issuer(settings))
        parts = ApiParts(
            auth=Auth(store, clock, tokens_required=api.tokens_required, issuers=issuers, authority=authority),
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
            request_metrics=inside.request_metrics,
            tracer=inside.tracer,
            authority=authority,
            sealer=sealer,
            keys=inside.keys,
            spare_clusters=frozenset(read_targets(settings.pipelines)),
            egress=inside.egress,
            files=inside.files,
            try_receiver=Messages(store, clock, sealer, inside.egress, inside.files).try_out,
            simulate=Simulations(),
        )
        inside.metrics.add(lambda: inside.request_metrics.families(len(parts.streams)))
        inside.metrics.add(parts.request_admission.families)
        inside.metrics.add(gauges.families)
        server = ApiServer(build_app(parts), parts, listener, tls=_tls(settings, inside))
        inside.metrics.add(server.connection_limits.families)
        tasks.start(recorder.run(), "recorder")
        tasks.start(heartbeats.run(), "heartbeats")
        start_recording(tasks, settings, store, clock, lambda: [each.instances for each in heartbeats.all_usage()])
        serving = tasks.start(server.serve(), "api")
        waiting = tasks.start(stopping.wait(), "signal")
        log.info("ready at %s", url)
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        server.stop()
        await serving


def _tls(settings: ServerSettings, inside: ServerState) -> ServerTls | None:
    made = inside.certificates
    if not settings.tls_cert:
        return made.tls if made is not None else None
    authorities = made.authorities_file if made is not None and made.authorities_file.exists() else None
    return ServerTls(Path(settings.tls_cert), Path(settings.tls_key), authorities)


def api_settings(settings: ServerSettings, url: str, *, tokens_required: bool) -> ApiSettings:
    return ApiSettings(
        address=url,
        tokens_required=tokens_required,
        image_bytes_most=int(settings.image_most),
        requests_per_second=float(settings.requests_each),
        requests_burst=settings.requests_each * BURST_SECONDS,
        watches_most=settings.streams_most,
        watches_each=settings.streams_each,
        connections_most=settings.connections_most,
        connections_each=settings.connections_each,
        head_seconds_most=float(settings.head_timeout),
        body_seconds_most=float(settings.body_timeout),
        idle_seconds_most=float(settings.idle_timeout),
        credential_age_seconds=float(settings.credential_age),
        login_scopes=settings.oidc_scopes,
        identity_issuer=settings.identity_issuer,
        vm_dedicated=settings.vm_dedicated,
    )


async def _schedule(store: Store, clock: Clock, settings: ServerSettings, pulse: Pulse, inside: ServerState) -> None:
    recorder = Recorder(store, "scheduler", clock)
    source = _config_source(settings, pulse).once()
    await asyncio.to_thread(source.read)  # Reads files and installed packages; no request waits for it.
    configured = Configured(source)
    pause = configured.pause()
    pools = _pools(settings)
    await claim(store, clock, pools)  # Another leader may have created some.
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
        await _record_disabled(store, recorder, pulse)
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


async def _record_disabled(store: Store, recorder: Recorder, pulse: Pulse) -> None:
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


async def _control(store: Store, clock: Clock, settings: ServerSettings, pulse: Pulse, inside: ServerState) -> None:
    recorder = Recorder(store, "controllers", clock)
    times = NodeTimes(
        suspect_seconds=settings.suspect_after, lost_seconds=settings.lost_after, mass_share=settings.mass_fraction
    )
    prometheus = Prometheus(settings.prometheus, loopback=inside.dev)
    servers = settings.machine_servers or (inside.url,)
    machines = Machines(
        store,
        clock,
        servers,
        settings.machine_ca,
        inside.everywhere,
        inside.fingerprint,
        inside.egress,
        inside.files,
    )
    sealer = inside.keys.ring if inside.keys else None
    measures = ControllerMeasures()
    with contextlib.ExitStack() as forget:
        forget.callback(inside.metrics.add(measures.families))
        async with (
            prometheus,
            machines,
            certificate_controller(settings, store, clock, recorder, sealer, inside.egress, inside.everywhere) as acme,
            Background() as tasks,
        ):
            forget.callback(inside.metrics.add(acme.families))
            controllers = make_controllers(
                store,
                clock,
                recorder,
                times=times,
                profiles=ConfiguredProfiles(_config_source(settings, pulse)),
                restore_seconds=settings.restore_after if settings.restore_after != NEVER else None,
                guard=pulse.watchdog,
                ask=prometheus.ask,
                machines=machines.source,
                certificates=acme,
                sealer=sealer,
            )
            tasks.start(recorder.run(), "recorder")
            keeper = AuditKeeper(
                store, clock, KeepAudits(float(settings.audit_keep), int(settings.audit_most)), inside.everywhere
            )
            sinks = AuditSinks(store, sealer, settings.audit_files, inside.egress, inside.files)
            tasks.start(keeper.run(), "audits")
            tasks.start(AuditExporter(store, clock, keeper, sinks.open).run(), "audits to log sinks")
            tasks.start(Messages(store, clock, sealer, inside.egress, inside.files).run(recorder), "messages")
            await run_all(controllers, store, clock, measures=measures, tracer=inside.tracer)


async def _tasks(store: Store, clock: Clock, settings: ServerSettings, pulse: Pulse, inside: ServerState) -> None:
    await tasks.lead(store, clock, settings, inside.queue, inside.crowded)


WORK = {"scheduler": _schedule, "controllers": _control, "tasks": _tasks}


@contextlib.contextmanager
def _listener(settings: ServerSettings) -> Iterator[socket.socket]:
    host, port = split_address(settings.listen)
    with open_socket(host, port) as listener:
        yield listener


def _url(listener: socket.socket, *, secure: bool) -> str:
    listen, port = listener.getsockname()[:2]
    host = advertised_host(listen)
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def store_access(settings: ServerSettings, remembered: MarkerContent | None = None) -> StoreAccess:
    password = Path(settings.store_password_file).read_text().strip() if settings.store_password_file else ""
    return StoreAccess(
        ca=settings.store_ca,
        cert=settings.store_cert,
        key=settings.store_key,
        user=settings.store_user,
        password=password,
        marker=remembered,
        accept_older=settings.accept_older_store,
    )


def _until_signal() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    return stopping


def main() -> None:
    """`python -m mandor.roots.server`: the program that `mandor dev` starts."""
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
    try:
        run(load(ServerSettings, "server", environ=os.environ, flags=flags), dev=dev)
    except MandorError as error:
        sys.exit(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""))


if __name__ == "__main__":
    main()
