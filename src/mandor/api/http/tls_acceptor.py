"""TlsAcceptor: accepts connections and counts them before their TLS handshake, which has a time limit.

`loop.create_server(ssl=…)` creates the protocol only after the handshake, so connections that stall in the handshake
would not be counted. TlsAcceptor accepts the connection, counts it, and calls `loop.connect_accepted_socket`.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial

from mandor.api.http.bounded_protocol import BoundedProtocol
from mandor.api.http.connection_limits import ConnectionLimits, OpenConnection

log = logging.getLogger("mandor.api")

ACCEPTED_EACH_PASS = 32  # connections per pass of the event loop
RETRY_SECONDS = 1.0
"""Pause after an error of `accept`, such as reaching the limit of open files."""


class TlsAcceptor:
    """Implements the two methods of `asyncio.Server` that uvicorn calls."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        seconds: float,
        connections: ConnectionLimits,
        connect: Callable[[], BoundedProtocol],
    ) -> None:
        """`seconds`: time limit of a handshake. `connect`: makes the protocol of a new connection."""
        self._listener, self._context, self._seconds = listener, context, seconds
        self._connections, self._connect = connections, connect
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._closed = False
        self._retry: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        self._closed = True
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        for each in self._handshakes:
            each.cancel()

    async def wait_closed(self) -> None:
        if self._handshakes:
            await asyncio.wait(self._handshakes)

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_EACH_PASS):
            try:
                accepted, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("cannot accept connections: %s", error.strerror or error)
                self._loop.remove_reader(self._listener)
                self._retry = self._loop.call_later(RETRY_SECONDS, self._listen)
                return
            accepted.setblocking(False)
            entry = self._connections.enter(str(peer[0]), partial(_reset, accepted))
            if entry is None:
                accepted.close()
                continue
            task = self._loop.create_task(self._handshake(accepted, entry))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, accepted: socket.socket, entry: OpenConnection) -> None:
        protocol = self._connect()
        protocol.set_entry(entry)
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._seconds,
                ssl_shutdown_timeout=self._seconds,
            )
        except (OSError, asyncio.CancelledError) as error:
            self._connections.leave(entry)
            accepted.close()
            log.debug("TLS handshake with %s failed: %s", entry.address, error)


def _reset(accepted: socket.socket) -> None:
    """Abort a handshake: the event loop sees the connection as closed by its peer."""
    try:
        accepted.shutdown(socket.SHUT_RDWR)
    except OSError:
        log.debug("the connection was already closed")
