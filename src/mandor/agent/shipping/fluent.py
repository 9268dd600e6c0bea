"""Log sink for Fluent's forward protocol: batches by tag in MessagePack, acknowledged by chunk id."""

import asyncio
import struct
import uuid
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from mandor.agent.shipping.connection import Connection, Pair
from mandor.agent.shipping.line import Line
from mandor.agent.shipping.sink import Sink
from mandor.errors import Unavailable
from mandor.lib.egress import STRICT, Egress
from mandor.model.log_sink import PORTS, LogSinkSpec

EVENT_TIME = 0
"""MessagePack extension type of a time in seconds and nanoseconds."""
FIXED, FIXED_MOST, TEXT_8 = 0xA0, 0xBF, 0xD9
ACK_MAP = 0x81


def tag_of(line: Line) -> str:
    """Return `mandor.NAMESPACE.WORKLOAD`, or `mandor.agent`."""
    return f"mandor.{line.namespace}.{line.workload}" if line.workload else "mandor.agent"


def _entry(line: Line) -> tuple[msgspec.msgpack.Ext, dict[str, str]]:
    seconds, rest = divmod(line.nanoseconds, 1_000_000_000)
    return msgspec.msgpack.Ext(EVENT_TIME, struct.pack(">II", seconds, rest)), line.record


class FluentSink(Sink):
    """Sends lines by Fluent's forward protocol."""

    def __init__(self, spec: LogSinkSpec, egress: Egress = STRICT) -> None:
        split, self._egress = urlsplit(spec.url), egress
        self._host, self._port = split.hostname or "", split.port or PORTS["fluent"]
        self._where = f"{self._host}:{self._port}"
        self._connection = Connection(self._where, float(spec.timeout), self._connect)

    async def send(self, lines: Sequence[Line]) -> None:
        by_tag: dict[str, list[Line]] = {}
        for line in lines:
            by_tag.setdefault(tag_of(line), []).append(line)
        waiting = {uuid.uuid4().hex: tag for tag in by_tag}
        async with self._connection.use() as (reader, writer):
            for chunk, tag in waiting.items():
                entries = [_entry(each) for each in by_tag[tag]]
                writer.write(msgspec.msgpack.encode((tag, entries, {"chunk": chunk, "size": len(entries)})))
            await writer.drain()
            while waiting:
                chunk = await _read_ack(reader)
                if waiting.pop(chunk, None) is None:
                    raise Unavailable(f"{self._where} acknowledged the unknown chunk {chunk[:40]!r}")

    async def close(self) -> None:
        self._connection.drop()

    async def _connect(self) -> Pair:
        return await self._egress.connect(self._host, self._port)


async def _read_ack(reader: asyncio.StreamReader) -> str:
    """Read `{"ack": ID}` and return the id."""
    if (await reader.readexactly(1))[0] != ACK_MAP or await _read_text(reader) != "ack":
        raise Unavailable("the answer is not an acknowledgement of the forward protocol")
    return await _read_text(reader)


async def _read_text(reader: asyncio.StreamReader) -> str:
    kind = (await reader.readexactly(1))[0]
    if FIXED <= kind <= FIXED_MOST:
        length = kind - FIXED
    elif kind == TEXT_8:
        length = (await reader.readexactly(1))[0]
    else:
        raise Unavailable("the answer is not an acknowledgement of the forward protocol")
    return (await reader.readexactly(length)).decode("utf-8", "replace")
