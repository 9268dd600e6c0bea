"""The control plane as one process: store, API, scheduler, controllers."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import uvicorn
import uvloop

from mandor.api.app import ApiParts, build_app
from mandor.api.heartbeat import Heartbeats
from mandor.api.settings import ApiSettings
from mandor.controllers.garbage import GarbageController
from mandor.controllers.node import NodeController, NodeTimes
from mandor.controllers.runner import run as run_controller
from mandor.controllers.workload import WorkloadController
from mandor.errors import Invalid
from mandor.lib import logs
from mandor.lib.clock import Clock, SystemClock
from mandor.lib.ids import new_uid
from mandor.lib.tasks import Background
from mandor.roots.bootstrap import ensure_cluster, ensure_key_file
from mandor.roots.settings import ServerSettings, load, loopback, split_address
from mandor.scheduler.loop import Scheduler
from mandor.store.base import Store
from mandor.store.election import Election
from mandor.store.access import StoreAccess
from mandor.store.open import open_store
from mandor.store.recorder import Recorder

log = logging.getLogger("mandor.server")


def run(settings: ServerSettings, *, dev: bool = False) -> None:
    """Serve until a signal. `dev` lets callers on this machine in without a token."""
    logs.set_up(settings.log_style, settings.log_level)  # type: ignore[arg-type]
    check_safe(settings)
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(settings, dev=dev))


def check_safe(settings: ServerSettings) -> None:
    host, _ = split_address(settings.listen)
    if not loopback(host) and not settings.tls_cert:
        raise Invalid(
            f"refusing to listen on {host} without TLS",
            hint="give --tls-cert and --tls-key, or listen on 127.0.0.1",
        )


async def serve(settings: ServerSettings, *, dev: bool = False, told: asyncio.Event | None = None) -> None:
    clock = SystemClock()
    server_id = new_uid()[:10]
    told = told or _told_by_signal()
    with _listening(settings.listen) as sock:
        url = settings.address or _url(sock, secure=bool(settings.tls_cert))
        async with await open_store(settings.store_url, access=_access(settings)) as store:
            cluster = await ensure_cluster(store)
            await ensure_key_file(store, settings.directory / "join.token", role="join", identity="join:first")
            if not dev:
                await ensure_key_file(
                    store, settings.directory / "admin.token", role="admin", identity="user:admin"
                )
            log.info("cluster %s, epoch %d, store %s", cluster.spec.id, cluster.spec.epoch, _shown(settings.store_url))
            async with Background() as tasks:
                await _start_parts(tasks, settings, store, clock, server_id, url, dev, sock, told)


async def _start_parts(
    tasks: Background,
    settings: ServerSettings,
    store: Store,
    clock: Clock,
    server_id: str,
    url: str,
    dev: bool,
    sock: socket.socket,
    told: asyncio.Event,
) -> None:
    recorder = Recorder(store, f"server {server_id}", clock)
    tasks.start(recorder.run(), "recorder")
    for role, work in (("scheduler", _schedule), ("controllers", _control)):
        if role in settings.roles:
            election = Election(store, role, server_id, float(settings.lease), clock, address=url)
            tasks.start(election.run(lambda fenced, work=work: work(fenced, clock, settings)), role)  # type: ignore[misc]
    if "api" not in settings.roles:
        log.info("ready, without an API: %s", ", ".join(settings.roles))
        await told.wait()
        return
    heartbeats = Heartbeats(store, clock, server_id, url)
    tasks.start(heartbeats.run(), "heartbeats")
    api = ApiSettings(address=url, tokens_required=not dev)
    app = build_app(ApiParts(store=store, clock=clock, heartbeats=heartbeats, settings=api, recorder=recorder))
    web = _Web(_uvicorn_config(app, settings))
    serving = tasks.start(web.serve(sockets=[sock]), "api")
    waiting = tasks.start(told.wait(), "signal")
    log.info("ready at %s", url)
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    app.state.closing.set()  # open watches end now: uvicorn would wait for them
    web.should_exit = True
    await serving


async def _schedule(store: Store, clock: Clock, settings: ServerSettings) -> None:
    recorder = Recorder(store, "scheduler", clock)
    async with Background() as tasks:
        tasks.start(recorder.run(), "recorder")
        await Scheduler(store, clock, recorder).run()


async def _control(store: Store, clock: Clock, settings: ServerSettings) -> None:
    recorder = Recorder(store, "controllers", clock)
    times = NodeTimes(suspect_seconds=settings.suspect_after, lost_seconds=settings.lost_after)
    controllers = (
        WorkloadController(store, clock, recorder),
        NodeController(store, clock, recorder, times),
        GarbageController(store, clock),
    )
    async with Background() as tasks:
        tasks.start(recorder.run(), "recorder")
        running = [tasks.start(run_controller(one, store, clock), one.name) for one in controllers]
        await asyncio.gather(*running)


class _Web(uvicorn.Server):
    """uvicorn without its own signal handling: the program decides when to end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _uvicorn_config(app: Callable[..., Awaitable[None]], settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="none",
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=1 << 20,
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        timeout_keep_alive=75,
        backlog=8192,
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
    )


@contextlib.contextmanager
def _listening(address: str) -> Iterator[socket.socket]:
    host, port = split_address(address)
    try:
        sock = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=8192, reuse_port=False
        )
    except OSError as error:
        raise Invalid(
            f"cannot listen on {address}: {error.strerror}",
            hint="another program may use that port: try --listen HOST:PORT",
        ) from error
    with sock:
        yield sock


def _url(sock: socket.socket, *, secure: bool) -> str:
    host, port = sock.getsockname()[:2]
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _access(settings: ServerSettings) -> StoreAccess:
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
    import argparse

    parser = argparse.ArgumentParser(prog="mandor-server")
    parser.add_argument("--dev", action="store_true")
    parser.add_argument("--data")
    parser.add_argument("--listen")
    flags = vars(parser.parse_args())
    dev = bool(flags.pop("dev"))
    run(load(ServerSettings, "server", environ=os.environ, flags=flags), dev=dev)


if __name__ == "__main__":
    main()
