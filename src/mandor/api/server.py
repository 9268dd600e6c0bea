"""ApiServer: uvicorn around the app, which ends its streams before it waits for them."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn

from mandor.api.app import App
from mandor.api.connection import ENDS_EACH_PASS, Connection, bound_unsent
from mandor.api.heads import Heads
from mandor.api.parts import ApiParts
from mandor.errors import Unavailable
from mandor.lib.trickle import Trickle

log = logging.getLogger("mandor.api")

BACKLOG = 8192
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

    def load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self.cert_file, self.key_file)

    def written_at(self) -> tuple[int, int]:
        return self.cert_file.stat().st_mtime_ns, self.key_file.stat().st_mtime_ns


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


class ApiServer(uvicorn.Server):
    """Use: `await server.serve()`, and `server.stop()` to end it; signals are left to who composes the process."""

    def __init__(self, app: App, parts: ApiParts, listener: socket.socket, *, tls: ServerTls | None = None) -> None:
        config = uvicorn.Config(
            app,
            loop="none",
            http=partial(Connection, parts.measures, Heads(), app.find, Trickle(ENDS_EACH_PASS)),  # type: ignore[arg-type]
            ws="websockets-sansio",
            ws_max_size=FRAME_BYTES_MOST,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            # Agents beat every ten seconds: their connections stay open in between.
            timeout_keep_alive=30,
            timeout_graceful_shutdown=5,
            backlog=BACKLOG,
            ssl_certfile=str(tls.cert_file) if tls else None,
            ssl_keyfile=str(tls.key_file) if tls else None,
        )
        super().__init__(config)
        self._tls = tls
        self._renewal: Renewal | None = None
        self._parts = parts
        self._listener = listener
        self._listening = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super().serve(sockets or [self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._tls is not None and self.config.ssl is not None:
            self._renewal = Renewal(self._tls, self.config.ssl)
        self._listening.set()

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
