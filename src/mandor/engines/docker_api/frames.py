"""Reads Docker's stream format: frames of standard output and standard error on one connection."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

from mandor.engines.base import LogLine

HEADER_BYTES = 8
STREAMS = {1: "stdout", 2: "stderr"}
LINE_MOST = 1 << 20
"""Limit of bytes per line; a longer line is split."""

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d) ?")

Read = Callable[[int], Awaitable[bytes]]
"""Reads exactly `count` bytes; fewer only at the end."""


async def read_frame(read: Read) -> tuple[str, bytes] | None:
    """Return the stream and the data of a frame; None at the end, also inside a frame."""
    while True:
        header = await read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return None
        size = int.from_bytes(header[4:], "big")
        data = await read(size)
        if len(data) < size:
            return None
        if header[0] in STREAMS:
            return STREAMS[header[0]], data


async def read_lines(read: Read) -> AsyncIterator[LogLine]:
    """Yield lines with their times; parts of a line that the engine or the program split are joined."""
    begun: dict[str, tuple[float, bytearray]] = {}
    while (frame := await read_frame(read)) is not None:
        stream, data = frame
        for piece in data.splitlines(keepends=True) if b"\n" in data[:-1] else [data]:
            stamp = _STAMP.match(piece)
            text = piece[stamp.end() :] if stamp else piece
            at, line = begun.pop(stream, (moment(stamp) if stamp else 0.0, bytearray()))
            line += text
            if not line.endswith(b"\n") and len(line) < LINE_MOST:
                begun[stream] = (at, line)
                continue
            yield LogLine(at, stream, bytes(line.removesuffix(b"\n")))
    for stream, (at, line) in begun.items():
        yield LogLine(at, stream, bytes(line))


def moment(stamp: re.Match[bytes]) -> float:
    zone = stamp.group(3).decode()
    whole = datetime.fromisoformat(stamp.group(1).decode() + ("+00:00" if zone == "Z" else zone))
    return whole.astimezone(UTC).timestamp() + float(stamp.group(2) or 0)


def parse_time(text: str) -> float:
    """Return the seconds since 1970; 0 for Docker's value for "never"."""
    stamp = _STAMP.match(text.encode())
    if stamp is None or text.startswith("0001-"):
        return 0.0
    return moment(stamp)
