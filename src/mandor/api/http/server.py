"""ApiServer: a uvicorn server that ends its streams before it shuts down."""

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import ssl
from collections.abc import Awaitable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import uvicorn

from mandor.api.http.bounded_protocol import MessageLimits
from mandor.api.http.connection import Connection, ConnectionContext, Find, SocketConnection, limit_unsent_bytes
from mandor.api.http.connection_limits import ConnectionLimits
from mandor.api.http.request_metrics import RequestMetrics
from mandor.api.http.tls_acceptor import TlsAcceptor
from mandor.api.settings import ApiSettings
from mandor.errors import Unavailable
from mandor.lib.port_holder import port_holder
from mandor.lib.tasks import Background

log = logging.getLogger("mandor.api")

BACKLOG = 8192
FILES_RESERVED = 256  # open files for the store, logs and outgoing connections
FRAME_BYTES_MOST = 1024 * 1024  # of a WebSocket
SHUTDOWN_READ_SECONDS = 1.0
"""Time that clients have to read the end of their responses when the server stops."""
CERTIFICATE_TICKS = 50
"""Ticks of uvicorn (a tenth of a second) between two checks of the certificate files."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files of the server's certificate."""

    cert_file: Path
    key_file: Path
    authorities_file: Path | None = None
    """Authorities that client certificates are verified against; None: clients are not asked for certificates."""

    def load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self.cert_file, self.key_file)
        if self.authorities_file is not None:
            # An authority that was removed from the file stays until a restart; `Auth` rejects its certificates.
            context.load_verify_locations(self.authorities_file)

    def written_at(self) -> tuple[int, ...]:
        files = (self.cert_file, self.key_file, self.authorities_file)
        return tuple(each.stat().st_mtime_ns for each in files if each is not None)


class CertificateReload:
    """Loads a changed certificate for new connections; open connections keep theirs."""

    def __init__(self, tls: ServerTls, context: ssl.SSLContext) -> None:
        self._tls, self._context = tls, context
        self._written_at = tls.written_at()

    def check(self) -> None:
        try:
            written_at = self._tls.written_at()
            if written_at == self._written_at:
                return
            self._written_at = written_at
            # A half-written pair would leave the context unusable, so it is loaded into another one first.
            self._tls.load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._tls.load(self._context)
        except OSError as error:
            log.warning("cannot load the certificate in %s: %s", self._tls.cert_file, error)
        else:
            log.info("loaded the new certificate in %s", self._tls.cert_file)


def open_socket(host: str, port: int) -> socket.socket:
    """Open a listening socket (port 0: any free port), so that the address is known before the server runs."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        holder = port_holder(port) if error.errno == errno.EADDRINUSE else ""
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            hint=f"{holder or 'another program'} has the port; choose another address with --listen HOST:PORT"
            if error.errno == errno.EADDRINUSE
            else "choose another address with --listen HOST:PORT",
        ) from error
    limit_unsent_bytes(listener)
    return listener


def _limit_by_files(connections: int) -> int:
    """Return the number of connections, reduced to what the process' limit of open files allows."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return connections if files == resource.RLIM_INFINITY else max(16, min(connections, files - FILES_RESERVED))


class RoutedApp(Protocol):
    """An ASGI application that can look up the endpoint of a path."""

    @property
    def find(self) -> Find: ...

    def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any, /) -> Awaitable[None]: ...


class _Streams(Protocol):
    def close(self) -> None: ...


class _Revocation(Protocol):
    async def run(self) -> None: ...


class ServerParts(Protocol):
    """The parts of the API that the server itself uses."""

    @property
    def settings(self) -> ApiSettings: ...

    @property
    def request_metrics(self) -> RequestMetrics: ...

    @property
    def streams(self) -> _Streams:
        """Closed when the server stops."""

    @property
    def revocation(self) -> _Revocation:
        """Runs as long as the server."""


class ApiServer(uvicorn.Server):
    """Use: `await server.serve()`, and `server.stop()` to end it. The caller handles signals."""

    def __init__(
        self, app: RoutedApp, parts: ServerParts, listener: socket.socket, *, tls: ServerTls | None = None
    ) -> None:
        settings = parts.settings
        connections = ConnectionLimits(_limit_by_files(settings.connections_most), settings.connections_each)
        context = ConnectionContext(parts.request_metrics, app.find, MessageLimits.of(settings), connections)
        config = uvicorn.Config(
            app,
            loop="none",
            http=partial(Connection, context),  # type: ignore[arg-type]
            ws=partial(SocketConnection, connections),  # type: ignore[arg-type]
            ws_max_size=FRAME_BYTES_MOST,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            # Agents send a heartbeat every ten seconds: their connections stay open in between.
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
            # Users authenticate with tokens: a client certificate is requested, but not required.
            config.ssl.verify_mode = ssl.CERT_OPTIONAL
            config.ssl.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        self.connection_limits, self._context = connections, context
        self._tls = tls
        self._certificate_reload: CertificateReload | None = None
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
            acceptors = [
                TlsAcceptor(each, self.config.ssl, seconds, self.connection_limits, self._connect) for each in sockets
            ]
            self.servers = acceptors  # type: ignore[assignment]
            self.started = True
            self._certificate_reload = CertificateReload(self._tls, self.config.ssl)
        self._listening.set()

    def _connect(self) -> Connection:
        state = self.lifespan.state
        return Connection(self._context, config=self.config, server_state=self.server_state, app_state=state)

    async def on_tick(self, counter: int) -> bool:
        if self._certificate_reload is not None and counter % CERTIFICATE_TICKS == 0:
            self._certificate_reload.check()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Uvicorn waits for every open response, and a watch never ends by itself.
        self._parts.streams.close()
        aborting = asyncio.ensure_future(self._abort_unread())
        try:
            await super().shutdown(sockets)
        finally:
            aborting.cancel()

    async def _abort_unread(self) -> None:
        """Abort connections whose clients do not read the end of their responses in time."""
        while True:
            await asyncio.sleep(SHUTDOWN_READ_SECONDS)
            for each in list(self.server_state.connections):
                if each.transport.get_write_buffer_size():
                    each.transport.abort()

    async def listening(self) -> None:
        """Wait until the server accepts connections."""
        await self._listening.wait()

    def stop(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
