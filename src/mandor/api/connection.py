"""Connection: HTTP to one caller, whose unread answers are bounded in bytes and in time.

Behind the application stand the buffers of the transport and of the kernel. A caller that reads nothing fills both;
from then on nothing more is made for it, and when it goes on reading nothing it is cut off. It may come again.
"""

import asyncio
import logging
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mandor.api.measures import Measures

log = logging.getLogger("mandor.api")

UNREAD_SECONDS_MOST = 60.0
"""Answers may stand unread for so long."""
WAITING_BYTES_MOST = 16 * 1024
"""A stream that has so much to go out waits; what was one piece goes beyond it."""
UNSENT_BYTES_MOST = 64 * 1024
"""So much the kernel takes that has not gone out; what is on its way besides is the caller's to take."""


class Connection(HttpToolsProtocol):
    """As uvicorn's; one that was told to wait and is not told to go on is ended."""

    def __init__(self, measures: Measures, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._measures = measures
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WAITING_BYTES_MOST)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._patience is None:
            self._patience = self.loop.call_later(UNREAD_SECONDS_MOST, self._cut)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._calm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._calm()
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


def bound_unsent(listener: socket.socket) -> None:
    """For every connection that comes from it, where the system can: how fast a connection is does not suffer."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        listener.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES_MOST)
