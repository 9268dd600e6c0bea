"""ApiServer: uvicorn around the app, which ends its streams before it waits for them."""

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn

from mandor.api.acceptor import TlsAcceptor
from mandor.api.app import App
from mandor.api.bounded_protocol import MessageLimits
from mandor.api.connection import Connection, Shared, SocketConnection, bound_unsent
from mandor.api.connection_limits import ConnectionLimits
from mandor.api.parts import ApiParts
from mandor.errors import Unavailable
from mandor.lib.tasks import Background

log = logging.getLogger("mandor.api")

BACKLOG = 8192
FILES_RESERVED = 256  # for the store, logs and calls to others
FRAME_BYTES_MOST = 1024 * 1024
LAST_WORDS_SECONDS = 1.0
"""So long a server that stops waits for callers to read."""
CERTIFICATE_TICKS = 50
"""Of a tenth of a second each, as uvicorn ticks: so often the files of the certificate are looked at."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Files in PEM form."""

    cert_file: Path
    key_file: Path
    authorities_file: Path | None = None
    """By which client certificates are verified; None: clients are asked for none."""

    def load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self.cert_file, self.key_file)
        if self.authorities_file is not None:
            # One that is no longer in the file stays until a restart; `Auth` takes no certificate of it.
            context.load_verify_locations(self.authorities_file)

    def written_at(self) -> tuple[int, ...]:
        files = (self.cert_file, self.key_file, self.authorities_file)
        return tuple(each.stat().st_mtime_ns for each in files if each is not None)


class Renewal:
    """Takes up a new certificate for the connections to come; those that are open keep theirs."""

    def __init__(self, tls: ServerTls, context: ssl.SSLContext) -> None:
        self._tls, self._context = tls, context
        self._written_at = tls.written_at()

    def look(self) -> None:
        try:
            written_at = self._tls.written_at()
            if written_at == self._written_at:
                return
            self._written_at = written_at
            # Half of a new pair would spoil the context, so it is tried out on another one.
            self._tls.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._tls.load(self._context)
        except OSError as error:
            log.warning("the certificate in %s is not taken up: %s", self._tls.cert_file, error)
        else:
            log.info("the certificate in %s is used from now on", self._tls.cert_file)


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket (port 0: any free one), so that the address is known before the server runs."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint="another server may be running there; --listen HOST:PORT chooses another address",
        ) from error
    bound_unsent(listener)
    return listener


def _within_files(connections: int) -> int:
    """At most so many connections as this process may have files open, less those that it needs itself."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return connections if files == resource.RLIM_INFINITY else max(16, min(connections, files - FILES_RESERVED))


class ApiServer(uvicorn.Server):
    """Use: `await server.serve()`, and `server.stop()` to end it; signals are left to who composes the process."""

    def __init__(self, app: App, parts: ApiParts, listener: socket.socket, *, tls: ServerTls | None = None) -> None:
        settings = parts.settings
        open_ones = ConnectionLimits(_within_files(settings.connections_most), settings.connections_each)
        shared = Shared(parts.measures, app.find, MessageLimits.of(settings), open_ones)
        config = uvicorn.Config(
            app,
            loop="none",
            http=partial(Connection, shared),  # type: ignore[arg-type]
            ws=partial(SocketConnection, shared.open_ones),  # type: ignore[arg-type]
            ws_max_size=FRAME_BYTES_MOST,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            # Agents beat every ten seconds: their connections stay open in between.
            timeout_keep_alive=settings.idle_seconds_most,  # type: ignore[arg-type]
            timeout_graceful_shutdown=5,
            backlog=BACKLOG,
            ssl_certfile=str(tls.cert_file) if tls else None,
            ssl_keyfile=str(tls.key_file) if tls else None,
        )
        super().__init__(config)
        if tls is not None and tls.authorities_file is not None:
            config.load()
            assert config.ssl is not None
            tls.load(config.ssl)
            # People show tokens: a certificate is asked for, and who has none is served, too.
            config.ssl.verify_mode = ssl.CERT_OPTIONAL
            config.ssl.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        self.open_ones, self._shared = open_ones, shared
        self._tls = tls
        self._renewal: Renewal | None = None
        self._parts = parts
        self._listener = listener
        self._listening = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        async with Background() as tasks:
            tasks.start(self._parts.revocation.run(), "revocation")
            await super().serve(sockets or [self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is None or self.config.ssl is None or not sockets:
            await super().startup(sockets)
        else:
            await self.lifespan.startup()
            seconds = self._parts.settings.head_seconds_most
            acceptors = [TlsAcceptor(each, self.config.ssl, seconds, self.open_ones, self._connect) for each in sockets]
            self.servers = acceptors  # type: ignore[assignment]
            self.started = True
            self._renewal = Renewal(self._tls, self.config.ssl)
        self._listening.set()

    def _connect(self) -> Connection:
        state = self.lifespan.state
        return Connection(self._shared, config=self.config, server_state=self.server_state, app_state=state)

    async def on_tick(self, counter: int) -> bool:
        if self._renewal is not None and counter % CERTIFICATE_TICKS == 0:
            self._renewal.look()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Uvicorn waits for every open answer, and a watch would never end by itself.
        self._parts.streams.set()
        cutting = asyncio.ensure_future(self._cut_off())
        try:
            await super().shutdown(sockets)
        finally:
            cutting.cancel()

    async def _cut_off(self) -> None:
        """Whoever does not read the end of an answer in time: nobody waits for that."""
        while True:
            await asyncio.sleep(LAST_WORDS_SECONDS)
            for each in list(self.server_state.connections):
                if each.transport.get_write_buffer_size():
                    each.transport.abort()

    async def listening(self) -> None:
        """Wait until it answers."""
        await self._listening.wait()

    def stop(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
