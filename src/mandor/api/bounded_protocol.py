"""BoundedProtocol: uvicorn's HTTP protocol with limits on the size of a head and on the time a message may take.

Uvicorn and httptools bound neither. Here a request line over 16 KiB is answered with 414, a head over 64 KiB or with
too many headers with 431, a message that does not arrive in time with 408, and one that is not HTTP with 400; all as
problem+json, after which the connection is closed.
"""

import asyncio
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mandor.api.caller import Caller
from mandor.api.connection_limits import ConnectionLimits, OpenConnection
from mandor.api.heads import Heads
from mandor.api.request import problem_reply
from mandor.api.settings import ApiSettings
from mandor.errors import Invalid, MandorError, TooLarge, Unavailable

LINGER_SECONDS = 1.0
"""After a refusal, what the caller still sends is discarded for so long: closing at once would reset the connection
before the answer is read."""
BODY_GRACE_SECONDS = 5.0
"""The endpoint that reads a body answers 408 first; the connection itself is closed so much later."""


class Stage(IntEnum):
    """The part of a message that is expected next."""

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

    def __init__(self, heads: Heads, limits: MessageLimits, open_ones: ConnectionLimits, **more: Any) -> None:
        super().__init__(**more)
        # The parser sets both at the first whole byte of a message: data may end before it.
        self.url, self.headers = b"", []
        self._heads, self._limits, self._open_ones = heads, limits, open_ones
        self._entry: OpenConnection | None = None
        self._stage = self._timed = Stage.HEAD
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._received = 0
        """Bytes of the part of the message that is being received; of a head an upper bound."""
        self._chunk = 0
        self._body_bytes = 0
        """Of this message."""
        self._chunk_body_bytes = 0
        """Of all messages, in the last chunk."""
        self._refused: tuple[MandorError, int] | None = None
        """The error that a callback of the parser found."""
        self._discards = False
        self._upgraded = False

    # Connections.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._entry is None:  # With TLS it was counted before the handshake.
            self._entry = self._open_ones.enter(self.client[0] if self.client else "", transport.abort)
        else:
            self._entry.close = transport.abort
        if self._entry is None or not self._entry.open:
            self._refuse(Unavailable("too many connections are open", hint="try again in a moment"), 503)
            return
        self._due = self.loop.time() + self._limits.head_seconds
        self._timer = self.loop.call_later(self._limits.head_seconds, self._check_time)

    def counted_as(self, entry: OpenConnection) -> None:
        """The connection was counted when it was accepted."""
        self._entry = entry

    def identified(self, caller: Caller) -> None:
        """A request on this connection has shown who sends it."""
        entry = self._entry
        if entry is not None and entry.identity != caller.identity:
            self._open_ones.identify(entry, caller)

    def _forget(self) -> None:
        """The connection has ended: it is not counted any more, and nothing is timed."""
        if self._entry is not None and not self._upgraded:
            self._open_ones.leave(self._entry)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def handle_websocket_upgrade(self) -> None:
        """The connection goes on under another protocol, which ends it."""
        self._upgraded = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        state, self.app_state = self.app_state, {**self.app_state, "identified": self.identified, "entry": self._entry}
        super().handle_websocket_upgrade()
        self.app_state = state

    # What arrives.

    def data_received(self, data: bytes) -> None:
        if self._discards:
            return
        self._chunk = len(data)
        self._chunk_body_bytes = 0
        self._received += self._chunk
        super().data_received(data)
        if self._stage is not Stage.NONE and self._reads():
            self._follow()

    def _reads(self) -> bool:
        return not (self._discards or self._upgraded)

    def _begin_head(self) -> None:
        """Bodies that came in the same chunk are no part of this head."""
        self._received = self._chunk - self._chunk_body_bytes
        self._stage = Stage.HEAD

    def _check_head(self) -> None:
        """The head is complete: raise if it is over a limit."""
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

    def _follow(self) -> None:
        """A message is not complete yet: check what it has so far, and time it."""
        limits = self._limits
        try:
            if self._stage is Stage.HEAD:
                if len(self.url) > limits.line_bytes:
                    self._raise_long_line()
                if self._received > limits.line_bytes + limits.head_bytes or len(self.headers) > limits.headers:
                    self._raise_large_head()
            # What is no body here is sizes of chunks, extensions and trailers.
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
        self._raise(TooLarge(f"the address has more than {most} bytes", hint="send less in the query", most=most), 414)

    def _raise_large_head(self) -> None:
        most = self._limits.head_bytes
        self._raise(TooLarge(f"the headers have more than {most} bytes", hint="send fewer headers", most=most), 431)

    def _raise(self, error: MandorError, status: int) -> None:
        """Ends the parser; uvicorn answers then with `send_400_response`."""
        self._refused = error, status
        raise httptools.HttpParserError

    def send_400_response(self, msg: str) -> None:
        self._refuse(*(self._refused or (Invalid("this is not an HTTP request"), 400)))

    def _refuse(self, error: MandorError, status: int) -> None:
        """Answer, if no other answer is under way, and close."""
        self._discards = True
        if self.cycle is not None and not self.cycle.response_complete:
            # The answer would be taken for that of a request before.
            self.transport.abort()
            return
        reply = problem_reply(error, status=status)
        self.transport.write(self._heads.whole(reply, self.server_state.default_headers, keep_alive=False))
        if self.scheme == "http" and self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        else:
            self.transport.close()
