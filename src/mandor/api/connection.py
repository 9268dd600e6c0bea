"""Connection: HTTP to one caller, whose unread answers are bounded in bytes and in time.

A request that is here as a whole and is answered in one piece goes *the short way*: its endpoint is called, and what it
replies is written at once. Everything else goes uvicorn's way, through the ASGI application: streams, sockets, the
panel, bodies that are still on their way, requests that do not wait for the answer before, and whatever is odd. Callers
cannot tell the two apart.

Behind both stand the buffers of the transport and of the kernel. A caller that reads nothing fills both; from then on
nothing more is made for it, and when it goes on reading nothing it is cut off. It may come again.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from mandor.api.bounded_protocol import BoundedProtocol, MessageLimits, Stage
from mandor.api.connection_limits import ConnectionLimits
from mandor.api.endpoint import Endpoint
from mandor.api.heads import Heads
from mandor.api.measures import Measures
from mandor.api.peer import Peer
from mandor.api.request import PEER, Reply, Request
from mandor.lib.trickle import Trickle

log = logging.getLogger("mandor.api")

UNREAD_SECONDS_MOST = 60.0
"""Answers may stand unread for so long."""
WAITING_BYTES_MOST = 16 * 1024
"""A stream that has so much to go out waits; what was one piece goes beyond it."""
ENDS_EACH_PASS = 64
"""So many connections are taken down in one pass of the event loop: each takes some 30 µs, with its streams."""
UNSENT_BYTES_MOST = 64 * 1024
"""So much the kernel takes that has not gone out; what is on its way besides is the caller's to take."""

Find = Callable[[str], tuple[Endpoint, Mapping[str, str]] | None]
_Found = tuple[Endpoint, str, Mapping[str, str], bytes]
"""With the path, what stands in it, and the query."""
_METHODS = {each.encode(): each for each in ("GET", "POST", "PUT", "PATCH", "DELETE")}
_PLAIN_URL = re.compile(rb"(/[\w.~!$&'()*+,;=:@-][\w.~!$&'()*+,;=:@/-]*)(?:\?([\w.~!$&'()*+,;=:@/?%-]*))?", re.ASCII)
"""Nothing that would have to be decoded in the path, and nothing that a parser could take for a host or a fragment."""
_ODD = frozenset({b"expect", b"upgrade", b"transfer-encoding"})


class _NobodyWaits:
    def set(self) -> None:
        """Uvicorn wakes who reads the body of a request; here all of it was there."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A request on the short way. The last five are what uvicorn asks of whatever is being answered."""

    endpoint: Endpoint
    request: Request
    keep_alive: bool
    body: bytes = b""
    more_body: bool = False
    disconnected: bool = False
    response_complete: bool = False
    message_event: _NobodyWaits = _NobodyWaits()  # noqa: RUF009


@dataclass(frozen=True, slots=True)
class Shared:
    """What all connections of a server use."""

    measures: Measures
    find: Find
    limits: MessageLimits
    open_ones: ConnectionLimits
    heads: Heads = field(default_factory=Heads)
    ends: Trickle = field(default_factory=lambda: Trickle(ENDS_EACH_PASS))
    """Spreads the work of ending connections: thousands may leave in one moment."""


class Connection(BoundedProtocol):
    """As uvicorn's; with a short way, and one that was told to wait and is not told to go on is ended."""

    cycle: Any  # an Exchange, too

    def __init__(self, shared: Shared, **more: Any) -> None:
        super().__init__(shared.heads, shared.limits, shared.open_ones, **more)
        self._measures, self._find, self._ends = shared.measures, shared.find, shared.ends
        self._peer: Peer | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._coming: Exchange | None = None
        """Its head is here; its body may be, too."""
        self._ready: Exchange | None = None
        self._asked: tuple[bytes, _Found | None] = b"", None
        """The last URL and who answers it: callers ask the same again and again."""
        self._quiet_since: float | None = None
        self._lull: asyncio.TimerHandle | None = None
        self._short = not (self.access_log or self.limit_concurrency is not None or self.root_path)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(high=WAITING_BYTES_MOST)
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        if certificate:
            # The state of the application goes into every scope, a WebSocket's too.
            self._peer = Peer(certificate)
            self.app_state = {**self.app_state, PEER: self._peer}

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._patience is None:
            self._patience = self.loop.call_later(UNREAD_SECONDS_MOST, self._cut)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._calm()

    def eof_received(self) -> bool:  # type: ignore[override]
        """True: it is closed here, when its turn has come; TLS takes no such answer."""
        if self.scheme != "http":
            return False
        self._ends.add(self.transport.close)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        # From here on nobody asks its transport, and nothing is written.
        self.connections.discard(self)
        self._forget()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
        self._ends.add(partial(self._end, exc))

    def _end(self, exc: Exception | None) -> None:
        self._calm()
        if self._lull is not None:
            self._lull.cancel()
        super().connection_lost(exc)

    def _calm(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _cut(self) -> None:
        self._patience = None
        self._measures.cut += 1
        log.info("%s has read nothing for %g s and is cut off", self.client, UNREAD_SECONDS_MOST)
        # Not `close`: that would wait until everything is read.
        self.transport.abort()

    # What the parser tells.

    def data_received(self, data: bytes) -> None:
        self._quiet_since = None
        super().data_received(data)
        if self._ready is not None:
            ready, self._ready = self._ready, None
            self._begin(ready)
        if self._coming is not None:
            coming, self._coming = self._coming, None
            if not self.transport.is_closing():
                # Who sends slowly is waited for there.
                self._go_usual_way()
                if coming.body:
                    super().on_body(coming.body)

    def on_message_begin(self) -> None:
        """Without what only the usual way needs."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._begin_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers, which come after the body, are ignored."""
        if self._stage is Stage.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._check_head()
        self._coming = self._exchange() if self._short else None
        if self._coming is None:
            self._go_usual_way()

    def on_body(self, body: bytes) -> None:
        size = len(body)
        self._body_bytes += size
        self._chunk_body_bytes += size
        if self._coming is not None:
            self._coming.body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._stage = self._timed = Stage.NONE
        if self._coming is not None:
            self.cycle = self._ready = self._coming
            self._coming = None
        else:
            super().on_message_complete()

    def _go_usual_way(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        self.scope["state"]["identified"] = self.identified
        super().on_headers_complete()

    # The short way.

    def _exchange(self) -> Exchange | None:
        """None: this request goes the usual way."""
        if self.cycle is not None and not self.cycle.response_complete:
            return None
        parser = self.parser
        method = _METHODS.get(parser.get_method())
        headers = dict(self.headers)
        if method is None or not _ODD.isdisjoint(headers) or parser.get_http_version() != "1.1":
            return None
        if self.url != self._asked[0]:
            self._asked = self.url, self._look_up(self.url)
        found = self._asked[1]
        if found is None or method not in found[0].whole:
            return None
        endpoint, path, names, query = found
        address = self.client[0] if self.client is not None else ""
        scheme = self.scheme or "http"
        request = Request(method, path, names, query, headers, address, scheme, self._peer, self.identified)
        return Exchange(endpoint, request, parser.should_keep_alive())

    def _look_up(self, url: bytes) -> _Found | None:
        plain = _PLAIN_URL.fullmatch(url)
        if plain is None:
            return None
        path = plain[1].decode("ascii")
        found = self._find(path)
        return (found[0], path, found[1], plain[2] or b"") if found is not None else None

    def _begin(self, exchange: Exchange) -> None:
        endpoint = exchange.endpoint
        if exchange.request.method in endpoint.prompt and not self.flow.write_paused:
            reply = endpoint.reply_at_once(exchange.request, exchange.body)
            if reply is not None:
                self._finish(exchange, reply)
                return
        task = self.loop.create_task(self._work(exchange))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _work(self, exchange: Exchange) -> None:
        reply = await exchange.endpoint.reply(exchange.request, exchange.body)
        assert isinstance(reply, Reply), f"{exchange.request.path} is answered in pieces"
        if self.flow.write_paused and not exchange.disconnected:
            await self.flow.drain()
        self._finish(exchange, reply)

    def _finish(self, exchange: Exchange, reply: Reply) -> None:
        # Bytes after a request that are no HTTP close the connection while the request is worked on.
        if exchange.disconnected or self.transport.is_closing():
            return
        keep_alive = exchange.keep_alive
        self.transport.write(self._heads.whole(reply, self.server_state.default_headers, keep_alive=keep_alive))
        exchange.response_complete = True
        if not keep_alive:
            self.transport.close()
        if self.pipeline:
            self.on_response_complete()
        else:
            self._rest()

    def _rest(self) -> None:
        """As `on_response_complete`, but one timer lasts through many requests."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self._quiet_since = self.loop.time()
        if self._lull is None:
            self._lull = self.loop.call_later(self.timeout_keep_alive, self._look_whether_quiet)

    def _look_whether_quiet(self) -> None:
        self._lull = None
        if self._quiet_since is None:
            return
        left = self._quiet_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0:
            self.timeout_keep_alive_handler()
        else:
            self._lull = self.loop.call_later(left, self._look_whether_quiet)


class SocketConnection(WebSocketsSansIOProtocol):
    """A WebSocket; it is counted as the HTTP connection was that it came from."""

    def __init__(self, open_ones: ConnectionLimits, **more: Any) -> None:
        super().__init__(**more)
        self._open_ones, self._entry = open_ones, more["app_state"].get("entry")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._entry is not None:
            self._open_ones.leave(self._entry)
        super().connection_lost(exc)


def bound_unsent(listener: socket.socket) -> None:
    """For every connection that comes from it, where the system can: how fast a connection is does not suffer."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        listener.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES_MOST)
