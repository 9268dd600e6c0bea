"""BoundedProtocol: uvicorn's HTTP protocol with limits on the size of a request head and the time to receive it.

Uvicorn and httptools limit neither and have no settings for it, so the limits need a subclass. The subclass overrides
callbacks of uvicorn's protocol and reads attributes that are not documented, so `pyproject.toml` allows only one minor
version of uvicorn.

BoundedProtocol answers a request line over 16 KiB with 414, a head over 64 KiB or with too many headers with 431, a
request that does not arrive in time with 408, and bytes that are not HTTP with 400. Each answer is problem+json, and
the connection is closed after it.
"""

import asyncio
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mandor.api.caller import Caller
from mandor.api.http.connection_limits import ConnectionLimits, OpenConnection
from mandor.api.http.request import problem_reply
from mandor.api.http.response_encoder import ResponseEncoder
from mandor.api.settings import ApiSettings
from mandor.errors import Invalid, MandorError, TooLarge, Unavailable

LINGER_SECONDS = 1.0
"""After a refusal the client's bytes are discarded for this long: closing at once would reset the connection before the
client has read the response."""
BODY_GRACE_SECONDS = 5.0
"""The endpoint that reads a body answers 408 first; the connection is closed this much later."""


class Stage(IntEnum):
    """The part of a request that is received next."""

    NONE = 0
    HEAD = 1
    BODY = 2


@dataclass(frozen=True, slots=True)
class MessageLimits:
    line_bytes: int
    head_bytes: int
    headers: int
    head_seconds: float
    body_seconds: float

    @classmethod
    def of(cls, settings: ApiSettings) -> "MessageLimits":
        return cls(
            settings.line_bytes_most,
            settings.head_bytes_most,
            settings.headers_most,
            settings.head_seconds_most,
            settings.body_seconds_most + BODY_GRACE_SECONDS,
        )


class BoundedProtocol(HttpToolsProtocol):
    """Subclasses set `_stage` from the parser's callbacks, and call `_check_head` when a head is complete."""

    cycle: Any

    def __init__(
        self, encoder: ResponseEncoder, limits: MessageLimits, connections: ConnectionLimits, **more: Any
    ) -> None:
        super().__init__(**more)
        # The parser sets both at the first byte of a message; they are read even if none arrives.
        self.url, self.headers = b"", []
        self._encoder, self._limits, self._counted = encoder, limits, connections
        self._entry: OpenConnection | None = None
        self._stage = self._timed = Stage.HEAD
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._received = 0
        """Bytes received of the current part of the message; for a head an upper bound."""
        self._chunk = 0
        self._body_bytes = 0
        """Body bytes of the current message."""
        self._chunk_body_bytes = 0
        """Body bytes of all messages in the last chunk."""
        self._refused: tuple[MandorError, int] | None = None
        """Error and HTTP status that a parser callback raised."""
        self._discards = False
        self._upgraded = False

    # Connections.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._entry is None:  # With TLS it was counted before the handshake.
            self._entry = self._counted.enter(self.client[0] if self.client else "", transport.abort)
        else:
            self._entry.close = transport.abort
        if self._entry is None or not self._entry.open:
            self._refuse(Unavailable("too many connections are open", hint="try again in a few seconds"), 503)
            return
        self._due = self.loop.time() + self._limits.head_seconds
        self._timer = self.loop.call_later(self._limits.head_seconds, self._check_time)

    def set_entry(self, entry: OpenConnection) -> None:
        """Set the entry of a connection that was counted when it was accepted."""
        self._entry = entry

    def identified(self, caller: Caller) -> None:
        """Record the caller of an authenticated request on this connection."""
        entry = self._entry
        if entry is not None and entry.identity != caller.identity:
            self._counted.identify(entry, caller)

    def _stop_counting(self) -> None:
        """Stop counting and timing a connection that has ended."""
        if self._entry is not None and not self._upgraded:
            self._counted.leave(self._entry)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the WebSocket protocol, which also stops counting it."""
        self._upgraded = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        state, self.app_state = self.app_state, {**self.app_state, "identified": self.identified, "entry": self._entry}
        super().handle_websocket_upgrade()
        self.app_state = state

    # Received data.

    def data_received(self, data: bytes) -> None:
        if self._discards:
            return
        self._chunk = len(data)
        self._chunk_body_bytes = 0
        self._received += self._chunk
        super().data_received(data)
        if self._stage is not Stage.NONE and self._is_receiving():
            self._check_progress()

    def _is_receiving(self) -> bool:
        return not (self._discards or self._upgraded)

    def _begin_head(self) -> None:
        """Start counting a head, without the body bytes that came in the same chunk."""
        self._received = self._chunk - self._chunk_body_bytes
        self._stage = Stage.HEAD

    def _check_head(self) -> None:
        """Raise if the head, which is complete, is over a limit."""
        limits, received = self._limits, self._received
        self._stage = Stage.BODY
        self._received = self._body_bytes = 0
        if received <= limits.line_bytes and len(self.headers) <= limits.headers:
            return
        if len(self.url) > limits.line_bytes:
            self._raise_long_line()
        if len(self.headers) > limits.headers:
            self._raise(TooLarge(f"the request has more than {limits.headers} headers", most=limits.headers), 431)
        if sum(len(name) + len(value) for name, value in self.headers) > limits.head_bytes:
            self._raise_large_head()

    def _check_progress(self) -> None:
        """Check the size of an incomplete message, and start its timer."""
        limits = self._limits
        try:
            if self._stage is Stage.HEAD:
                if len(self.url) > limits.line_bytes:
                    self._raise_long_line()
                if self._received > limits.line_bytes + limits.head_bytes or len(self.headers) > limits.headers:
                    self._raise_large_head()
            # The bytes that are not body are chunk sizes, extensions and trailers.
            elif self._received - self._body_bytes > limits.head_bytes + 16 * self._body_bytes:
                self._raise_large_head()
        except httptools.HttpParserError:
            self.send_400_response("")
            return
        if self._timed is not self._stage:
            self._timed = self._stage
            seconds = limits.head_seconds if self._stage is Stage.HEAD else limits.body_seconds
            self._due = self.loop.time() + seconds
            if self._timer is None:
                self._timer = self.loop.call_later(seconds, self._check_time)

    def _check_time(self) -> None:
        self._timer = None
        if self._timed is Stage.NONE or self.transport.is_closing():
            return
        left = self._due - self.loop.time()
        if left > 0:
            self._timer = self.loop.call_later(left, self._check_time)
        elif self._timed is Stage.BODY:
            self.transport.abort()
        elif self._received:
            self._refuse(Invalid(f"the request did not arrive within {self._limits.head_seconds:g} s"), 408)
        else:
            self.transport.close()

    # Refusals.

    def _raise_long_line(self) -> None:
        most = self._limits.line_bytes
        self._raise(TooLarge(f"the URL has more than {most} bytes", hint="shorten the query", most=most), 414)

    def _raise_large_head(self) -> None:
        most = self._limits.head_bytes
        self._raise(TooLarge(f"the headers have more than {most} bytes", hint="send fewer headers", most=most), 431)

    def _raise(self, error: MandorError, status: int) -> None:
        """Stop the parser; uvicorn then calls `send_400_response`."""
        self._refused = error, status
        raise httptools.HttpParserError

    def send_400_response(self, msg: str) -> None:
        self._refuse(*(self._refused or (Invalid("the received bytes are not an HTTP request"), 400)))

    def _refuse(self, error: MandorError, status: int) -> None:
        """Send an error response, unless another response is being sent, and close the connection."""
        self._discards = True
        if self.cycle is not None and not self.cycle.response_complete:
            # The client would take this response for that of an earlier request.
            self.transport.abort()
            return
        reply = problem_reply(error, status=status)
        self.transport.write(self._encoder.encode(reply, self.server_state.default_headers, keep_alive=False))
        if self.scheme == "http" and self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        else:
            self.transport.close()
