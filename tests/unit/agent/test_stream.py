"""Logs and exec over an in-memory connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import msgspec
import pytest

from mandor.agent.feed import Source
from mandor.agent.link import Duplex
from mandor.agent.stream import END, RESIZE, STDERR, STDIN, STDOUT, Streams, choose_task
from mandor.engines.base import Engine, Execution, Launch, Unit
from mandor.engines.fake import FakeEngine
from mandor.errors import Invalid, NotFound, Unavailable
from mandor.lib.clock import settle
from mandor.model.image import ImageFile
from mandor.model.meta import Meta
from mandor.model.record import Session, SessionSpec
from mandor.store.base import Change

UNIT = Unit("u1", "main", 1)
SOURCE = Source("c1", 1, 1)


class Line:
    """The agent's end of a connection; the test has the other end."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.closed = asyncio.Event()

    async def send(self, frame: bytes) -> None:
        if self.closed.is_set():
            raise Unavailable("the line is broken")
        await self.sent.put(frame)
        if frame[0] == END:  # Whoever is told the end hangs up.
            await self.incoming.put(None)

    async def receive(self) -> bytes | None:
        frame = await self.incoming.get()
        if frame is None:
            self.incoming.put_nowait(None)  # For whoever asks again.
        return frame

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed.set()
        await self.sent.put(None)

    async def frames(self) -> list[bytes]:
        """Everything that was sent until the agent closed the line."""
        found = []
        async with asyncio.timeout(20):
            while (frame := await self.sent.get()) is not None:
                found.append(frame)
        await settle()
        return found


class Sessions:
    """Streams of a fake engine, and the connections that the agent opens."""

    def __init__(self, engine: FakeEngine, most: int = 64) -> None:
        self.engine = engine
        self.lines: list[Line] = []
        self.refuse = False
        self.streams = Streams(self, self._find, self._load, most=most)  # type: ignore[arg-type]
        self._count = 0

    def _find(self, uid: str, task: str) -> tuple[Engine, Unit]:
        if uid != "u1":
            raise NotFound("no task of this instance has run on this node yet")
        return self.engine, Unit(uid, task or "main", 1)

    async def _load(self, spec: SessionSpec, line: Duplex) -> bytes:
        return msgspec.json.encode({"size": spec.image.size if spec.image else 0})

    async def dial(self, session: Session) -> Line:
        if self.refuse:
            raise Unavailable("nobody waits")
        self.lines.append(Line())
        return self.lines[-1]

    async def open(self, verb: Any, **spec: Any) -> Line:
        self._count += 1
        whole = SessionSpec(
            verb=verb, instance="web-0", uid=spec.pop("uid", "u1"), node="n1", server="", secret="", **spec
        )
        name = f"s{self._count}"
        self.session = Session(meta=Meta(name=name, namespace="default", uid=name), spec=whole)
        self.streams.changed(Change(1, None, self.session), SOURCE)
        async with asyncio.timeout(20):
            while len(self.lines) < self._count:
                await asyncio.sleep(0.001)
        return self.lines[-1]


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as engine:
        options = {"stdout": ["one", "two\nthree", "ünï"], "stderr": ["oops"]}
        await engine.start(UNIT, Launch(name="web-0", options=options))
        yield engine


@pytest.fixture
async def sessions(engine: FakeEngine) -> AsyncIterator[Sessions]:
    sessions = Sessions(engine)
    yield sessions
    await sessions.streams.close()


def lines(frames: list[bytes]) -> list[tuple[int, str]]:
    return [
        (frame[0], msgspec.json.decode(line)["text"])
        for frame in frames
        for line in frame[1:].splitlines()
        if frame[0] != END
    ]


async def test_log_lines_are_sent_on_their_channels_and_the_connection_is_closed(sessions: Sessions) -> None:
    frames = await (await sessions.open("logs")).frames()
    assert lines(frames) == [(STDOUT, "one"), (STDOUT, "two"), (STDOUT, "three"), (STDOUT, "ünï"), (STDERR, "oops")]
    assert len(frames) == 2, "lines that are there share a frame"


async def test_only_the_last_lines_when_asked_for(sessions: Sessions) -> None:
    assert lines(await (await sessions.open("logs", tail=1)).frames()) == [(STDERR, "oops")]


@pytest.mark.req("S0-30")
async def test_following_a_log_continues_until_the_unit_ends(sessions: Sessions, engine: FakeEngine) -> None:
    line = await sessions.open("logs", follow=True)
    async with asyncio.timeout(20):
        assert await line.sent.get() is not None
    assert not line.closed.is_set()
    engine.end(UNIT, 0)
    await line.frames()
    assert line.closed.is_set()


async def test_a_client_that_disconnects_ends_the_stream(sessions: Sessions) -> None:
    line = await sessions.open("logs", follow=True)
    await line.incoming.put(None)
    await line.frames()
    assert len(sessions.streams) == 0


async def test_frames_have_a_limited_size(sessions: Sessions, engine: FakeEngine) -> None:
    unit = Unit("u1", "chatty", 1)
    await engine.start(unit, Launch(name="web-0", options={"stdout": ["x" * 1000] * 20_000}))
    line = await sessions.open("logs", task="chatty")
    frames = await line.frames()
    assert sum(frame.count(b"\n") for frame in frames) == 20_000
    assert max(len(frame) for frame in frames) <= 40_000


@pytest.mark.req("S0-30")
async def test_exec_has_output_and_an_exit_code(sessions: Sessions) -> None:
    frames = await (await sessions.open("exec", command=("echo", "hi"))).frames()
    assert frames == [bytes([STDOUT]) + b"hi\n", bytes([END]) + b'{"code":0}']
    frames = await (await sessions.open("exec", command=("exit", "7"))).frames()
    assert frames == [bytes([END]) + b'{"code":7}']


async def test_exec_takes_input_until_its_end(sessions: Sessions) -> None:
    line = await sessions.open("exec", command=("cat",), stdin=True)
    await line.incoming.put(bytes([STDIN]) + b"hello")
    await line.incoming.put(b"")
    await line.incoming.put(bytes([99]) + b"from a newer client")
    await line.incoming.put(bytes([STDIN]))
    frames = await line.frames()
    assert frames[0] == bytes([STDOUT]) + b"hello"
    assert frames[-1] == bytes([END]) + b'{"code":0}'


async def test_without_input_a_command_sees_its_end_at_once(sessions: Sessions) -> None:
    frames = await (await sessions.open("exec", command=("cat",), stdin=False)).frames()
    assert frames == [bytes([END]) + b'{"code":0}']


async def test_a_terminal_is_resized_and_invalid_frames_are_ignored(sessions: Sessions, engine: FakeEngine) -> None:
    sizes: list[tuple[int, int]] = []
    original = engine.exec

    async def remember(*args: Any, **kwargs: Any) -> Execution:
        execution = await original(*args, **kwargs)

        async def resize(rows: int, columns: int) -> None:
            sizes.append((rows, columns))

        execution.resize = resize  # type: ignore[method-assign]
        return execution

    engine.exec = remember  # type: ignore[method-assign]
    line = await sessions.open("exec", command=("cat",), terminal=True, stdin=True)
    for data in (b"garbage", b'{"rows": -1, "columns": 5}', b'{"rows": 50, "columns": 120}'):
        await line.incoming.put(bytes([RESIZE]) + data)
    await line.incoming.put(bytes([STDIN]))
    await line.frames()
    assert sizes == [(50, 120)]


async def test_a_client_that_disconnects_ends_the_command(sessions: Sessions, engine: FakeEngine) -> None:
    line = await sessions.open("exec", command=("cat",), stdin=True)
    await line.incoming.put(None)
    await line.frames()
    assert len(sessions.streams) == 0


async def test_an_upload_ends_with_its_results(sessions: Sessions) -> None:
    frames = await (await sessions.open("load", image=ImageFile(kind="archive", size=7))).frames()
    assert frames == [bytes([END]) + b'{"size":7}']


async def test_errors_are_sent_to_the_client(sessions: Sessions, engine: FakeEngine) -> None:
    problem = (await (await sessions.open("logs", uid="u9")).frames())[-1]
    assert problem[0] == END
    assert msgspec.json.decode(problem[1:])["code"] == "not_found"
    engine.end(UNIT)
    problem = (await (await sessions.open("exec", command=("cat",))).frames())[-1]
    assert "not running" in msgspec.json.decode(problem[1:])["detail"]


async def test_a_session_over_the_limit_is_refused_and_the_others_go_on(engine: FakeEngine) -> None:
    sessions = Sessions(engine, most=2)
    for _ in range(2):
        await sessions.open("logs", follow=True)
    problem = (await (await sessions.open("logs", follow=True)).frames())[-1]
    assert msgspec.json.decode(problem[1:])["code"] == "too_many"
    assert len(sessions.streams) == 2
    await sessions.streams.close()
    assert len(sessions.streams) == 0


async def test_a_session_is_served_once_however_often_it_is_seen(sessions: Sessions) -> None:
    await (await sessions.open("logs")).frames()
    sessions.streams.changed(Change(2, None, sessions.session), SOURCE)
    sessions.streams.listed([sessions.session], SOURCE)
    await asyncio.sleep(0.01)
    assert len(sessions.lines) == 1


async def test_a_server_that_does_not_answer_affects_one_session_only(
    sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    sessions.refuse = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await sessions.open("logs")
    assert "cannot connect to the server of session s1: nobody waits" in caplog.text
    assert len(sessions.streams) == 0


# Which task.


def test_a_session_uses_the_only_main_task_unless_another_is_named() -> None:
    assert choose_task("", ["app"], ["init", "app", "ship"]) == "app"
    assert choose_task("ship", ["app"], ["init", "app", "ship"]) == "ship"
    with pytest.raises(NotFound, match="no task x"):
        choose_task("x", ["app"], ["app"])
    with pytest.raises(Invalid) as caught:
        choose_task("", ["a", "b"], ["a", "b"])
    assert "a, b" in str(caught.value.hint)
