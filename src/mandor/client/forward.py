"""Local ports whose connections lead to instances of the cluster.

async with Client(["http://127.0.0.1:8080"]) as client, PortForward(client, fixed("web-0", "http")) as local:
    reader, writer = await asyncio.open_connection("127.0.0.1", local.port)
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

from mandor.client.aio import Client, Line
from mandor.client.problem import error_of
from mandor.errors import Invalid, MandorError, TooMany, Unavailable
from mandor.lib.tcp_reset import reset

log = logging.getLogger(__name__)

CONNECTIONS_MOST = 48
"""Connections of one local port at the same time; a server allows 64 sessions of one identity."""
BLOCK = 32 << 10
"""Bytes of one frame."""
DATA_UP, DATA_DOWN, END = 0, 1, 3


class InstancePort(NamedTuple):
    """A port of an instance, by name or number."""

    instance: str
    port: str


Choose = Callable[[], Awaitable[InstancePort]]
"""Returns the port for the next connection."""


def fixed(instance: str, port: str) -> Choose:
    """Return a function that always chooses this port."""

    async def choose() -> InstancePort:
        return InstancePort(instance, port)

    return choose


class PortForward:
    """Listens on a local address, and forwards each connection to a port of an instance."""

    def __init__(
        self,
        client: Client,
        choose: Choose,
        *,
        namespace: str = "default",
        address: str = "127.0.0.1",
        port: int = 0,
        failed: Callable[[MandorError], None] = lambda error: None,
    ) -> None:
        """`port`: local port; 0: a free one. `failed`: called with the error of a connection that was not forwarded."""
        self._client, self._choose, self._namespace = client, choose, namespace
        self._address, self.port, self._failed = address, port, failed
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(self._accept, self._address, self.port, limit=BLOCK)
        except OSError as error:
            message = f"cannot listen on {self._address} port {self.port}: {error.strerror or error}"
            raise Unavailable(message, hint="choose another local port, or `:PORT` for a free one") from error
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        full = len(self._open) >= CONNECTIONS_MOST
        task = asyncio.ensure_future(self._serve(reader, writer, full=full))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, full: bool) -> None:
        ended = False
        try:
            if full:
                raise TooMany(f"{CONNECTIONS_MOST} connections to port {self.port} are open", hint="close one")
            ended = await self._forward(reader, writer)
        except MandorError as error:
            self._failed(error)
        except OSError as error:
            log.debug("a forwarded connection was interrupted: %s", error)
        finally:
            if not ended:
                reset(writer.transport)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Pass bytes both ways; return whether both directions ended regularly."""
        chosen = await self._choose()
        query = [("port", chosen.port), ("namespace", self._namespace)]
        async with await self._client.dial(f"/v1/instances/{chosen.instance}/forward", query=query) as line:
            up = asyncio.ensure_future(_send(reader, line))
            try:
                return await _receive(line, writer)
            finally:
                up.cancel()
                with suppress(asyncio.CancelledError, MandorError, OSError):
                    await up


async def _send(reader: asyncio.StreamReader, line: Line) -> None:
    try:
        while data := await reader.read(BLOCK):
            await line.send(bytes([DATA_UP]) + data)
    except OSError:
        await line.close()  # The local program broke off; the instance sees a reset.
        return
    await line.send(bytes([DATA_UP]))


async def _receive(line: Line, writer: asyncio.StreamWriter) -> bool:
    while (frame := await line.receive()) is not None:
        if frame[:1] == bytes([END]):
            _raise_problem(frame[1:])
            return True
        if frame[:1] != bytes([DATA_DOWN]):
            continue
        if len(frame) > 1:
            writer.write(frame[1:])
            await writer.drain()
        else:
            writer.write_eof()
    return False


def _raise_problem(data: bytes) -> None:
    try:
        result = json.loads(data or b"{}")
    except ValueError as error:
        raise Invalid("the server sent an end of a session that is not JSON") from error
    if isinstance(result, dict) and isinstance(result.get("code"), str):
        raise error_of(result)
