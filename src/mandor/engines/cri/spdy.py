"""The part of SPDY/3.1 that Kubernetes' streaming protocol needs: streams opened by this side, data in both directions.

Header blocks are sent without the preset dictionary, which the protocol allows; received header blocks are skipped.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from mandor.errors import EngineDown, Unavailable

_CONTROL, _VERSION = 0x8000, 3
_SYN_STREAM, _RST_STREAM, _PING, _GOAWAY = 1, 3, 6, 7
_FIN = 1
_HEAD = struct.Struct(">HHI")
FRAME_MOST = 16 * 1024 * 1024
PIECE_BYTES = 32 * 1024
ANSWER_MOST = 64 * 1024
OPEN_SECONDS = 30.0


class SpdyConnection:
    """Reads frames in order; a slow reader slows down the sender."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._packer = zlib.compressobj()
        self._next = 1

    async def open(self, headers: Mapping[str, str]) -> int:
        """Open a stream and return its number."""
        stream, self._next = self._next, self._next + 2
        block = struct.pack(">I", len(headers))
        for name, value in headers.items():
            block += b"".join(struct.pack(">I", len(part)) + part for part in (name.encode(), value.encode()))
        packed = self._packer.compress(block) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        await self._send(_SYN_STREAM, struct.pack(">IIH", stream, 0, 0) + packed)
        return stream

    async def write(self, stream: int, data: bytes, *, last: bool = False) -> None:
        """Send data; on a closed connection it is dropped, and the reader gets the end."""
        pieces = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)] or [b""]
        for piece in pieces:
            ends = _FIN if last and piece is pieces[-1] else 0
            self._writer.write(struct.pack(">II", stream, ends << 24 | len(piece)) + piece)
            try:
                await self._writer.drain()
            except OSError:
                return

    async def read(self) -> tuple[int, bytes, bool] | None:
        """Return the stream, its data and whether the stream ends; None: the connection has ended."""
        while True:
            try:
                first, second, rest = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
                flags, length = rest >> 24, rest & 0xFFFFFF
                if length > FRAME_MOST:
                    return None
                data = await self._reader.readexactly(length)
            except (asyncio.IncompleteReadError, OSError):
                return None
            if not first & _CONTROL:
                return (first << 16 | second) & 0x7FFFFFFF, data, bool(flags & _FIN)
            if second == _PING:
                await self._send(_PING, data)
            elif second == _RST_STREAM:
                return int.from_bytes(data[:4], "big") & 0x7FFFFFFF, b"", True
            elif second == _GOAWAY:
                return None

    async def close(self) -> None:
        self._writer.transport.abort()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _send(self, kind: int, data: bytes) -> None:
        self._writer.write(_HEAD.pack(_CONTROL | _VERSION, kind, len(data)) + data)
        await self._writer.drain()


async def upgrade(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, url: str, protocol: str
) -> SpdyConnection:
    """Upgrade a connection to the server of `url` to SPDY."""
    parts = urlsplit(url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    lines = (
        f"POST {target} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Connection: Upgrade",
        "Upgrade: SPDY/3.1",
        f"X-Stream-Protocol-Version: {protocol}",
        "Content-Length: 0",
    )
    writer.write("".join(f"{line}\r\n" for line in (*lines, "")).encode())
    await writer.drain()
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            answer = await reader.readuntil(b"\r\n\r\n")
    except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise EngineDown(f"{parts.netloc} does not speak SPDY/3.1") from error
    status = answer.split(b"\r\n", 1)[0].decode(errors="replace")
    if " 101 " not in f"{status} ":
        raise Unavailable(f"{parts.netloc} refused the upgrade to SPDY: {status}")
    return SpdyConnection(reader, writer)
