"""Strict receivers of logs: each takes what its protocol's documents allow, and complains about anything else."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from mandor.agent.shipping.line import Line
from tests.components.ports import free_port

LABELS = ("namespace", "workload", "instance", "task", "node", "stream")


@dataclass
class Receiver:
    """Started and stopped at will on the same port; what it has taken stays."""

    lines: list[Line] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    port: int = field(default_factory=free_port)

    async def start(self) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        await self.stop()
        try:
            yield
        finally:
            await self.start()

    async def arrived(self, count: int) -> list[Line]:
        async with asyncio.timeout(60):
            while len(self.lines) < count and not self.faults:
                await asyncio.sleep(0.01)
        assert not self.faults, self.faults
        return self.lines


def make_line(at: float, labels: dict[str, str], text: str) -> Line:
    known: dict[str, Any] = {name: labels.get(name, "") for name in LABELS}
    return Line(at=at, text=text, **known)


# Syslog: RFC 5424.

_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)"
_SYSLOG = re.compile(
    rf"<(?P<pri>\d{{1,3}})>1 (?P<at>{_TIME}) (?P<host>[!-~]{{1,255}}) (?P<app>[!-~]{{1,48}}) (?P<proc>[!-~]{{1,128}}) "
    r'(?P<id>[!-~]{1,32}) \[(?P<sd>[^ =\]"]{1,32})(?P<params>(?: [^ =\]"]{1,32}="(?:[^"\\\]]|\\["\\\]])*")*)\] '
    r"(?P<text>.*)",
    re.DOTALL,
)
_PARAM = re.compile(r' ([^ =\]"]{1,32})="((?:[^"\\\]]|\\["\\\]])*)"')


def parse_syslog(data: bytes) -> tuple[int, Line]:
    """Priority and line; `ValueError` for what RFC 5424 does not allow."""
    found = _SYSLOG.fullmatch(data.decode("utf-8"))
    if found is None or int(found["pri"]) > 191:
        raise ValueError(f"no message of RFC 5424: {data[:200]!r}")
    params = {name: re.sub(r"\\(.)", r"\1", value) for name, value in _PARAM.findall(found["params"])}
    assert found["host"] == params["node"]
    assert found["id"] == params["stream"]
    at = datetime.fromisoformat(found["at"]).timestamp()
    return int(found["pri"]), make_line(at, params, found["text"])


@dataclass
class SyslogTcp(Receiver):
    """Octet counting, RFC 6587."""

    priorities: list[int] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """As a process that is killed: whatever it has not read is gone."""
        assert self._server is not None
        self._server.close()
        for each in list(self._open):
            each.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            await self._read_on(reader, writer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        except Exception as error:
            self.faults.append(repr(error))
        finally:
            self._open.discard(writer)
            writer.close()

    async def _read_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            length = await reader.readuntil(b" ")
            if not length[:-1].isdigit() or length[:1] == b"0":
                raise ValueError(f"{length!r} is no length")
            priority, line = parse_syslog(await reader.readexactly(int(length)))
            self.priorities.append(priority)
            self.lines.append(line)


@dataclass
class SyslogDatagrams(Receiver, asyncio.DatagramProtocol):
    path: Path | None = None
    _transport: Any = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        if self.path is None:
            made = loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", self.port))
        else:
            import socket

            plain = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            plain.setblocking(False)
            plain.bind(str(self.path))
            made = loop.create_datagram_endpoint(lambda: self, sock=plain)
        self._transport, _ = await made

    async def stop(self) -> None:
        self._transport.abort()
        await asyncio.sleep(0.05)
        if self.path is not None:
            self.path.unlink()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        try:
            self.lines.append(parse_syslog(data)[1])
        except Exception as error:
            self.faults.append(repr(error))


# Fluent forward, version 1.


class Unpacker:
    """MessagePack as far as it is used, from a stream."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def read(self) -> Any:
        kind = (await self._reader.readexactly(1))[0]
        if kind <= 0x7F:
            return kind
        if 0x80 <= kind <= 0x8F:
            return await self._map(kind & 15)
        if 0x90 <= kind <= 0x9F:
            return [await self.read() for _ in range(kind & 15)]
        if 0xA0 <= kind <= 0xBF:
            return (await self._reader.readexactly(kind & 31)).decode()
        if kind == 0xD7:
            return await self._event_time()
        sizes = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4, 0xCC: 1, 0xCD: 2, 0xCE: 4}
        number = int.from_bytes(await self._reader.readexactly(sizes[kind]), "big")
        if kind in {0xCC, 0xCD, 0xCE}:
            return number
        if kind in {0xDC, 0xDD}:
            return [await self.read() for _ in range(number)]
        if kind in {0xDE, 0xDF}:
            return await self._map(number)
        return (await self._reader.readexactly(number)).decode()

    async def _map(self, count: int) -> dict[str, Any]:
        return {await self.read(): await self.read() for _ in range(count)}

    async def _event_time(self) -> float:
        kind, seconds, rest = struct.unpack(">bII", await self._reader.readexactly(9))
        if kind != 0 or rest >= 1_000_000_000:
            raise ValueError("no EventTime")
        return float(seconds + rest / 1e9)


@dataclass
class Fluent(SyslogTcp):
    """Forward mode; a chunk is acknowledged once it is kept."""

    tags: list[str] = field(default_factory=list)
    silent: bool = False
    """It keeps everything and acknowledges nothing."""

    async def _read_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        unpacker = Unpacker(reader)
        while True:
            tag, entries, option = await unpacker.read()
            if not isinstance(tag, str) or option["size"] != len(entries):
                raise ValueError(f"no forward mode: {tag!r} {option!r}")
            for at, record in entries:
                if not isinstance(at, float):
                    raise ValueError(f"{at!r} is no EventTime")
                self.tags.append(tag)
                self.lines.append(make_line(at, record, record["message"]))
            if not self.silent:
                writer.write(msgspec.msgpack.encode({"ack": option["chunk"]}))
                await writer.drain()


# Over HTTP: Loki, OTLP.


@dataclass
class Web(Receiver):
    path = "/"
    answers: list[tuple[int, str]] = field(default_factory=list)
    """Given instead of taking anything, the first first."""
    headers: list[dict[str, str]] = field(default_factory=list)
    most_lines: int = 10_000
    """More at once are too large."""
    _runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post(self.path, self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.headers.append(dict(request.headers))
        if self.answers:
            status, text = self.answers.pop(0)
            return web.Response(status=status, text=text)
        try:
            assert request.content_type == "application/json"
            lines = self.parse(msgspec.json.decode(await request.read()))
        except Exception as error:
            self.faults.append(repr(error))
            return web.Response(status=400, text=repr(error))
        if len(lines) > self.most_lines:
            return web.Response(status=413, text="too large")
        self.lines += lines
        return self.thanks()

    def parse(self, body: Any) -> list[Line]:
        raise NotImplementedError

    def thanks(self) -> web.Response:
        return web.Response(status=204)


class Loki(Web):
    path = "/loki/api/v1/push"

    def parse(self, body: Any) -> list[Line]:
        found = []
        assert set(body) == {"streams"}
        for stream in body["streams"]:
            assert set(stream) == {"stream", "values"}
            assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) for name in stream["stream"])
            for at, text in stream["values"]:
                assert isinstance(at, str)
                assert at.isdigit()
                found.append(make_line(int(at) / 1e9, stream["stream"], text))
        return found


class Otlp(Web):
    path = "/v1/logs"

    def thanks(self) -> web.Response:
        return web.json_response({"partialSuccess": {}})

    def parse(self, body: Any) -> list[Line]:
        found = []
        assert set(body) == {"resourceLogs"}
        for each in body["resourceLogs"]:
            about = _attributes(each["resource"]["attributes"])
            for scope in each["scopeLogs"]:
                assert scope["scope"]["name"] == "mandor"
                found += [self._line(about, record) for record in scope["logRecords"]]
        return found

    def _line(self, about: dict[str, str], record: Any) -> Line:
        assert record["timeUnixNano"].isdigit()
        assert 1 <= record["severityNumber"] <= 24
        own = _attributes(record["attributes"])
        of_agent = about["service.name"] == "mandor-agent"
        labels = {
            "namespace": about.get("service.namespace", ""),
            "workload": "" if of_agent else about["service.name"],
            "instance": about.get("service.instance.id", ""),
            "node": about["host.name"],
            "task": own.get("mandor.task", ""),
            "stream": own.get("log.iostream", "agent"),
        }
        return make_line(int(record["timeUnixNano"]) / 1e9, labels, record["body"]["stringValue"])


def _attributes(given: Any) -> dict[str, str]:
    return {each["key"]: each["value"]["stringValue"] for each in given}


@asynccontextmanager
async def serving(receiver: Receiver) -> AsyncIterator[None]:
    await receiver.start()
    try:
        yield
    finally:
        with suppress(OSError):
            await receiver.stop()
