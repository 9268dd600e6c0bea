"""Connection: the HTTP protocol of one client connection, with limits on unread responses.

A request that has arrived completely and whose response is one piece takes the *fast path*: its endpoint is called and
the reply is written at once. Every other request goes through uvicorn and the ASGI application: streams, WebSockets,
the web panel, incomplete bodies, pipelined requests, and unusual headers or URLs. The responses are byte for byte the
same on both paths. The fast path is there for speed alone: without it, a server answers about a fifth fewer heartbeats
per second of processor time. Everything else in this class and in `BoundedProtocol` enforces limits.

The buffers of the transport and the kernel hold what the client has not read. When they are full, no more is produced;
when the client still reads nothing for `UNREAD_SECONDS_MOST`, the connection is aborted.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from mandor.api.http.bounded_protocol import BoundedProtocol, MessageLimits, Stage
from mandor.api.http.client_certificate import ClientCertificate
from mandor.api.http.connection_limits import ConnectionLimits
from mandor.api.http.request import CLIENT_CERTIFICATE, Reply, Request
from mandor.api.http.request_metrics import RequestMetrics
from mandor.api.http.response_encoder import ResponseEncoder
from mandor.lib.paced_queue import PacedQueue

log = logging.getLogger("mandor.api")

UNREAD_SECONDS_MOST = 60.0
"""Time after which a connection whose client reads nothing is aborted."""
WAITING_BYTES_MOST = 16 * 1024
"""Unsent bytes at which a stream pauses; a response of one piece may exceed it."""
CLOSED_EACH_PASS = 64
"""Connections closed per pass of the event loop; each takes about 30 µs with its streams."""
UNSENT_BYTES_MOST = 64 * 1024
"""Unsent bytes that the kernel buffers per connection."""


class Responder(Protocol):
    """The endpoint of a path, as the fast path calls it."""

    @property
    def whole(self) -> Set[str]:
        """Methods whose responses are one piece."""

    @property
    def prompt(self) -> Set[str]:
        """Methods for which `reply_at_once` is worth a try."""

    async def reply(self, request: Request, body: bytes) -> Any: ...

    def reply_at_once(self, request: Request, body: bytes) -> Reply | None: ...


Find = Callable[[str], tuple[Responder, Mapping[str, str]] | None]
_Route = tuple[Responder, str, Mapping[str, str], bytes]
"""Endpoint, path, path parameters and query of a URL."""
_METHODS = {each.encode(): each for each in ("GET", "POST", "PUT", "PATCH", "DELETE")}
_PLAIN_URL = re.compile(rb"(/[\w.~!$&'()*+,;=:@-][\w.~!$&'()*+,;=:@/-]*)(?:\?([\w.~!$&'()*+,;=:@/?%-]*))?", re.ASCII)
"""A path without escapes, and nothing that a parser could take for a host or a fragment."""
_UNUSUAL_HEADERS = frozenset({b"expect", b"upgrade", b"transfer-encoding"})


class _NoWaiter:
    def set(self) -> None:
        """Do nothing: uvicorn wakes the reader of a body here, but the body has arrived already."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A request on the fast path. Uvicorn reads the last five fields of any request that is in progress."""

    endpoint: Responder
    request: Request
    keep_alive: bool
    body: bytes = b""
    more_body: bool = False
    disconnected: bool = False
    response_complete: bool = False
    message_event: _NoWaiter = _NoWaiter()  # noqa: RUF009


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """The objects that all connections of a server share."""

    metrics: RequestMetrics
    find: Find
    limits: MessageLimits
    connections: ConnectionLimits
    encoder: ResponseEncoder = field(default_factory=ResponseEncoder)
    closing: PacedQueue = field(default_factory=lambda: PacedQueue(CLOSED_EACH_PASS))
    """Spreads the work of closing thousands of connections over several passes of the event loop."""


class Connection(BoundedProtocol):
    """Uvicorn's protocol with a fast path and a time limit on unread responses."""

    cycle: Any  # uvicorn's RequestResponseCycle, or an Exchange

    def __init__(self, context: ConnectionContext, **more: Any) -> None:
        super().__init__(context.encoder, context.limits, context.connections, **more)
        self._metrics, self._find, self._closing = context.metrics, context.find, context.closing
        self._certificate: ClientCertificate | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._incoming: Exchange | None = None
        """A request whose head has arrived, and perhaps its body."""
        self._ready: Exchange | None = None
        self._last_route: tuple[bytes, _Route | None] = b"", None
        """The last URL and its route, cached because clients repeat requests."""
        self._idle_since: float | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._has_fast_path = not (self.access_log or self.limit_concurrency is not None or self.root_path)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(high=WAITING_BYTES_MOST)
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        if certificate:
            # The application's state is copied into every scope, also that of a WebSocket.
            self._certificate = ClientCertificate(certificate)
            self.app_state = {**self.app_state, CLIENT_CERTIFICATE: self._certificate}

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(UNREAD_SECONDS_MOST, self._abort_unread)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_unread_timer()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return True to close the connection later from here; TLS does not support that."""
        if self.scheme != "http":
            return False
        self._closing.add(self.transport.close)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        # From here on the transport is not used.
        self.connections.discard(self)
        self._stop_counting()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
        self._closing.add(partial(self._close, exc))

    def _close(self, exc: Exception | None) -> None:
        self._cancel_unread_timer()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)

    def _cancel_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _abort_unread(self) -> None:
        self._unread_timer = None
        self._metrics.cut += 1
        log.info("%s has read nothing for %g s: connection aborted", self.client, UNREAD_SECONDS_MOST)
        # Not `close`: that would wait until the client has read everything.
        self.transport.abort()

    # Callbacks of the parser.

    def data_received(self, data: bytes) -> None:
        self._idle_since = None
        super().data_received(data)
        if self._ready is not None:
            ready, self._ready = self._ready, None
            self._start(ready)
        if self._incoming is not None:
            incoming, self._incoming = self._incoming, None
            if not self.transport.is_closing():
                # The rest of the body has not arrived: uvicorn waits for it.
                self._use_uvicorn()
                if incoming.body:
                    super().on_body(incoming.body)

    def on_message_begin(self) -> None:
        """Initialise a request without the parts that only uvicorn's path needs."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._begin_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header; trailers, which come after the body, are ignored."""
        if self._stage is Stage.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._check_head()
        self._incoming = self._exchange() if self._has_fast_path else None
        if self._incoming is None:
            self._use_uvicorn()

    def on_body(self, body: bytes) -> None:
        size = len(body)
        self._body_bytes += size
        self._chunk_body_bytes += size
        if self._incoming is not None:
            self._incoming.body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._stage = self._timed = Stage.NONE
        if self._incoming is not None:
            self.cycle = self._ready = self._incoming
            self._incoming = None
        else:
            super().on_message_complete()

    def _use_uvicorn(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        self.scope["state"]["identified"] = self.identified
        super().on_headers_complete()

    # The fast path.

    def _exchange(self) -> Exchange | None:
        """Return an exchange for the fast path, or None if uvicorn has to handle this request."""
        if self.cycle is not None and not self.cycle.response_complete:
            return None
        parser = self.parser
        method = _METHODS.get(parser.get_method())
        headers = dict(self.headers)
        if method is None or not _UNUSUAL_HEADERS.isdisjoint(headers) or parser.get_http_version() != "1.1":
            return None
        if self.url != self._last_route[0]:
            self._last_route = self.url, self._route(self.url)
        found = self._last_route[1]
        if found is None or method not in found[0].whole:
            return None
        endpoint, path, names, query = found
        address = self.client[0] if self.client is not None else ""
        scheme = self.scheme or "http"
        request = Request(method, path, names, query, headers, address, scheme, self._certificate, self.identified)
        return Exchange(endpoint, request, parser.should_keep_alive())

    def _route(self, url: bytes) -> _Route | None:
        plain = _PLAIN_URL.fullmatch(url)
        if plain is None:
            return None
        path = plain[1].decode("ascii")
        found = self._find(path)
        return (found[0], path, found[1], plain[2] or b"") if found is not None else None

    def _start(self, exchange: Exchange) -> None:
        endpoint = exchange.endpoint
        if exchange.request.method in endpoint.prompt and not self.flow.write_paused:
            reply = endpoint.reply_at_once(exchange.request, exchange.body)
            if reply is not None:
                self._finish(exchange, reply)
                return
        task = self.loop.create_task(self._process(exchange))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _process(self, exchange: Exchange) -> None:
        reply = await exchange.endpoint.reply(exchange.request, exchange.body)
        assert isinstance(reply, Reply), f"{exchange.request.path} is answered in pieces"
        if self.flow.write_paused and not exchange.disconnected:
            await self.flow.drain()
        self._finish(exchange, reply)

    def _finish(self, exchange: Exchange, reply: Reply) -> None:
        # Invalid bytes after a request close the connection while the request is processed.
        if exchange.disconnected or self.transport.is_closing():
            return
        keep_alive = exchange.keep_alive
        self.transport.write(self._encoder.encode(reply, self.server_state.default_headers, keep_alive=keep_alive))
        exchange.response_complete = True
        if not keep_alive:
            self.transport.close()
        if self.pipeline:
            self.on_response_complete()
        else:
            self._become_idle()

    def _become_idle(self) -> None:
        """Do the work of `on_response_complete`, with one timer for many requests."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._check_idle)

    def _check_idle(self) -> None:
        self._idle_timer = None
        if self._idle_since is None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0:
            self.timeout_keep_alive_handler()
        else:
            self._idle_timer = self.loop.call_later(left, self._check_idle)


class SocketConnection(WebSocketsSansIOProtocol):
    """A WebSocket; it keeps the place of the HTTP connection that was upgraded."""

    def __init__(self, connections: ConnectionLimits, **more: Any) -> None:
        super().__init__(**more)
        self._counted, self._entry = connections, more["app_state"].get("entry")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._entry is not None:
            self._counted.leave(self._entry)
        super().connection_lost(exc)


def limit_unsent_bytes(listener: socket.socket) -> None:
    """Limit the kernel's send buffer of every connection of a listener, where the system supports it.

    Throughput does not suffer.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        listener.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES_MOST)
