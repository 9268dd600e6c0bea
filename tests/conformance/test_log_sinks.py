"""Every log sink against a strict receiver of its protocol."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mandor.agent.shipping.line import Line
from mandor.agent.shipping.sink import Sink, open_sink
from mandor.errors import Invalid, TooLarge, Unavailable
from mandor.lib.egress import LOOPBACK, Egress
from mandor.lib.quantity import Seconds, Size
from mandor.lib.secret_files import SecretFiles
from mandor.model.log_sink import LogSinkSpec
from mandor.testing.log_sink import LogSinkSuite, line
from tests.components import log_receivers as receivers
from tests.components.log_receivers import Receiver, make_line, serving


async def secret(reference: str, namespace: str) -> str:
    return f"value of {namespace}/{reference}\n"


def spec_of(url: str, **fields: object) -> LogSinkSpec:
    return LogSinkSpec(url=url, **({"timeout": Seconds(20)} | fields))  # type: ignore[arg-type]


def opened(url: str, **fields: object) -> Sink:
    socket = urlsplit(url).path if url.startswith("syslog+unix:") else "/dev/log"
    return open_sink(spec_of(url, **fields), [], secret, Egress([*LOOPBACK, f"unix:{socket}"]), SecretFiles("/"))


class Received(LogSinkSuite):
    receiver: Receiver

    async def arrived(self, count: int) -> list[Line]:
        return await self.receiver.arrived(count)

    def away(self) -> AbstractAsyncContextManager[None]:
        return self.receiver.away()


class TestSyslogTcp(Received):
    sure = False

    @pytest.fixture
    async def sink(self) -> AsyncIterator[Sink]:
        self.receiver = receivers.SyslogTcp()
        async with serving(self.receiver):
            sink = opened(f"syslog+tcp://127.0.0.1:{self.receiver.port}")
            yield sink
            await sink.close()

    async def test_levels_are_priorities_and_tasks_and_agents_differ(self, sink: Sink) -> None:
        own = Line(at=1.0, text="t", node="n1", stream="agent", level="warning")
        await sink.send([line(1), line(2, stream="stderr"), own])
        await self.arrived(3)
        assert isinstance(self.receiver, receivers.SyslogTcp)
        assert self.receiver.priorities == [14, 11, 28]

    async def test_what_was_sent_just_before_the_receiver_died_is_sent_again(self, sink: Sink) -> None:
        await sink.send([line(1)])
        await self.arrived(1)
        await self.receiver.stop()
        self.receiver.lines.clear()  # It had read it, and had not written it down.
        await self.receiver.start()
        await asyncio.sleep(0.05)
        await sink.send([line(2)])
        assert [each.text for each in await self.arrived(2)] == ["line 1", "line 2"]


class TestSyslogUdp(Received):
    sure = False

    @pytest.fixture
    async def sink(self) -> AsyncIterator[Sink]:
        self.receiver = receivers.SyslogDatagrams()
        async with serving(self.receiver):
            sink = opened(f"syslog+udp://127.0.0.1:{self.receiver.port}")
            yield sink
            await sink.close()


class TestSyslogUnix(Received):
    @pytest.fixture
    async def sink(self, tmp_path: Path) -> AsyncIterator[Sink]:
        self.receiver = receivers.SyslogDatagrams(path=tmp_path / "log")
        async with serving(self.receiver):
            sink = opened(f"syslog+unix://{tmp_path / 'log'}")
            yield sink
            await sink.close()


class TestFluent(Received):
    @pytest.fixture
    async def sink(self) -> AsyncIterator[Sink]:
        self.receiver = receivers.Fluent()
        async with serving(self.receiver):
            sink = opened(f"fluent://127.0.0.1:{self.receiver.port}")
            yield sink
            await sink.close()

    async def test_what_is_not_acknowledged_was_not_taken(self, sink: Sink) -> None:
        assert isinstance(self.receiver, receivers.Fluent)
        self.receiver.silent = True
        hasty = opened(f"fluent://127.0.0.1:{self.receiver.port}", timeout=Seconds(0.3))
        with pytest.raises(Unavailable, match="did not answer"):
            await hasty.send([line(1)])
        await hasty.close()

    async def test_lines_are_tagged_by_namespace_and_workload(self, sink: Sink) -> None:
        await sink.send([line(1), Line(at=1.0, text="t", node="n1", stream="agent", level="info")])
        await self.arrived(2)
        assert isinstance(self.receiver, receivers.Fluent)
        assert self.receiver.tags == ["mandor.shop.web", "mandor.agent"]


class OverHttp(Received):
    receiver: receivers.Web

    async def test_answers_show_whether_to_wait_to_send_less_or_to_give_up(self, sink: Sink) -> None:
        for status in (401, 403, 404, 429, 500, 503):
            self.receiver.answers = [(status, "no")]
            with pytest.raises(Unavailable, match=f"{status} no"):
                await sink.send([line(1)])
        self.receiver.answers = [(413, "")]
        with pytest.raises(TooLarge):
            await sink.send([line(1)])
        self.receiver.answers = [(400, "bad line")]
        with pytest.raises(Invalid, match="bad line"):
            await sink.send([line(1)])


class TestLoki(OverHttp):
    @pytest.fixture
    async def sink(self) -> AsyncIterator[Sink]:
        self.receiver = receivers.Loki()
        async with serving(self.receiver):
            sink = opened(f"loki+http://127.0.0.1:{self.receiver.port}", tenant="blue", user="u", password="loki")
            yield sink
            await sink.close()

    async def test_the_receiver_gets_sender_and_resource_attributes(self, sink: Sink) -> None:
        await sink.send([line(1)])
        (headers,) = self.receiver.headers
        assert headers["X-Scope-OrgID"] == "blue"
        assert headers["Authorization"] == "Basic dTp2YWx1ZSBvZiBkZWZhdWx0L2xva2k="


class TestOtlp(OverHttp):
    @pytest.fixture
    async def sink(self) -> AsyncIterator[Sink]:
        self.receiver = receivers.Otlp()
        async with serving(self.receiver):
            sink = opened(f"otlp+http://127.0.0.1:{self.receiver.port}", token="otlp/key")
            yield sink
            await sink.close()

    async def test_records_that_were_refused_are_reported(self, sink: Sink) -> None:
        self.receiver.answers = [(200, '{"partialSuccess": {"rejectedLogRecords": "2", "errorMessage": "old"}}')]
        with pytest.raises(Invalid, match="the receiver refused 2 records: old") as caught:
            await sink.send([line(1), line(2), line(3)])
        assert caught.value.facts["lines"] == 2
        assert self.receiver.headers[0]["Authorization"] == "Bearer value of default/otlp/key"


class TestFile(LogSinkSuite):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        self.path = tmp_path / "out" / "all.log"
        return open_sink(spec_of(f"file://{self.path}"), [tmp_path], secret)

    async def arrived(self, count: int) -> list[Line]:
        entries = [json.loads(text) for text in self.path.read_text().splitlines()]
        return [make_line(datetime.fromisoformat(each["at"]).timestamp(), each, each["message"]) for each in entries]

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        kept = self.path.read_bytes()
        self.path.unlink()
        self.path.mkdir()
        yield
        self.path.rmdir()
        self.path.write_bytes(kept)

    async def test_a_large_file_makes_place_and_so_many_older_ones_stay(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        sink = open_sink(spec_of(f"file://{path}", rotate=Size(64 * 1024), keep=2), [tmp_path], secret)
        for number in range(40):
            await sink.send([line(number, text=f"{number} " + "x" * 8000)])
        assert sorted(each.name for each in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
        assert all(each.stat().st_size <= 64 * 1024 for each in tmp_path.iterdir())
        assert json.loads(path.read_text().splitlines()[-1])["message"].startswith("39 ")

    async def test_a_manifest_alone_writes_nowhere(self, tmp_path: Path) -> None:
        allowed, other = tmp_path / "allowed", tmp_path / "other"
        allowed.mkdir()
        other.mkdir()
        (allowed / "way-out").symlink_to(other)
        (allowed / "link").symlink_to(other / "target")
        for path in (other / "log", allowed / "way-out" / "log", allowed / "link"):
            sink = open_sink(spec_of(f"file://{path}"), [allowed], secret)
            with pytest.raises(Unavailable):
                await sink.send([line()])
        assert not list(other.iterdir())
