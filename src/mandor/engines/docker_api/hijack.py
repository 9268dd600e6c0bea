"""Requests whose connection becomes a pair of byte streams, such as `exec` and `attach`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

HEAD_MOST = 65536
PIECE_BYTES = 65536


class Hijacked:
    """Both directions of one connection; closing it does not end the command."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self, most: int = PIECE_BYTES) -> bytes:
        try:
            return await self._reader.read(most)
        except OSError:
            return b""

    async def read_exactly(self, count: int) -> bytes:
        """Read exactly `count` bytes; fewer only at the end."""
        try:
            return await self._reader.readexactly(count)
        except asyncio.IncompleteReadError as error:
            return error.partial
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
        """Send data; on a closed connection it is dropped, and the reader gets the end."""
        with suppress(OSError):
            self._writer.write(data)
            await self._writer.drain()

    def write_eof(self) -> None:
        with suppress(OSError):
            if self._writer.can_write_eof():
                self._writer.write_eof()

    async def close(self) -> None:
        self._writer.transport.abort()  # Unsent data is discarded.
        with suppress(OSError):
            await self._writer.wait_closed()


async def hijack(socket: Path, path: str, body: bytes) -> tuple[int, bytes, Hijacked | None]:
    """Return the status, and either an error message or the connection."""
    reader, writer = await asyncio.open_unix_connection(str(socket), limit=HEAD_MOST)
    try:
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
            f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status = int(head.split(" ", 2)[1])
        if status in {101, 200}:
            return status, b"", Hijacked(reader, writer)
        message = await _body(reader, head)
    except BaseException:
        writer.close()
        raise
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return status, message, None


async def _body(reader: asyncio.StreamReader, head: str) -> bytes:
    for line in head.splitlines():
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            return await reader.readexactly(min(int(value), HEAD_MOST))
    return b""
