"""Runs a command in a container with Kubernetes' remote command protocol, version 4."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import msgspec

from mandor.engines.containers.output import Output
from mandor.engines.cri.spdy import SpdyConnection, upgrade
from mandor.errors import EngineDown

PROTOCOL = "v4.channel.k8s.io"
KILLED = 137
FAILED = 126
"""Exit code of a shell for a command that cannot be run."""

Dial = Callable[[str, int, ssl.SSLContext | None], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def dial_directly(
    host: str, port: int, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(host, port, ssl=context)


async def begin(url: str, dial: Dial, *, terminal: bool) -> CriExecution:
    """Start the command. `url`: the answer of the runtime to `Exec`; it is valid once, for a short time."""
    parts = urlsplit(url)
    context = None
    if parts.scheme == "https":  # The runtime's own certificate on loopback: the token in the URL is the secret.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        reader, writer = await dial(parts.hostname or "127.0.0.1", parts.port or 80, context)
        connection = await upgrade(reader, writer, url, PROTOCOL)
    except OSError as error:
        raise EngineDown(f"the runtime's streaming server at {parts.netloc} does not answer: {error}") from error
    streams = {}
    for kind in ("error", "stdin", "stdout", *(("resize",) if terminal else ("stderr",))):
        streams[kind] = await connection.open({"streamtype": kind})
    return CriExecution(connection, streams)


class CriExecution:
    def __init__(self, connection: SpdyConnection, streams: dict[str, int]) -> None:
        self._connection = connection
        self._streams = streams
        self._kinds = {number: kind for kind, number in streams.items()}
        self._output = Output()
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read_all())

    async def read(self) -> tuple[str, bytes] | None:
        return await self._output.read()

    async def write(self, data: bytes) -> None:
        if not self._over.done():
            await self._connection.write(self._streams["stdin"], data, last=not data)

    async def resize(self, rows: int, columns: int) -> None:
        if "resize" in self._streams and not self._over.done():
            size = msgspec.json.encode({"Width": columns, "Height": rows})
            await self._connection.write(self._streams["resize"], size)

    async def wait(self) -> int:
        return await asyncio.shield(self._over)

    async def close(self) -> None:
        """Close the connection: the input of the command ends, and its output is discarded."""
        if not self._over.done():
            self._over.set_result(KILLED)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._output.drop()
        await self._connection.close()

    async def _read_all(self) -> None:
        verdict, open_streams = b"", {"stdout", "stderr", "error"} & self._streams.keys()
        try:
            while open_streams and (frame := await self._connection.read()) is not None:
                number, data, last = frame
                kind = self._kinds.get(number, "")
                if kind == "error":
                    verdict += data
                elif data and kind in {"stdout", "stderr"}:
                    await self._output.put(kind, data)
                if last:
                    open_streams.discard(kind)
        finally:
            if not self._over.done():
                self._over.set_result(exit_code(verdict))
        await self._output.end()


def exit_code(verdict: bytes) -> int:
    """Return the exit code from the status on the error stream."""
    try:
        status = msgspec.json.decode(verdict) if verdict else {}
    except msgspec.DecodeError:
        return FAILED
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or []
    codes = [str(cause.get("message", "")) for cause in causes if cause.get("reason") == "ExitCode"]
    return int(codes[0]) if codes and codes[0].isdecimal() else FAILED
