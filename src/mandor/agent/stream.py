"""Serves sessions (logs, exec, forwarded ports, images): connects to the client's server and passes data both ways."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import msgspec

from mandor.agent.feed import Source
from mandor.agent.link import Duplex, Link
from mandor.engines.base import Engine, Execution, LogLine, Unit
from mandor.errors import Invalid, MandorError, NotFound, TooMany
from mandor.model.meta import Object
from mandor.model.record import Session, SessionSpec
from mandor.store.base import Change

log = logging.getLogger(__name__)

STDIN, STDOUT, STDERR, END, RESIZE = 0, 1, 2, 3, 4
FRAME_MOST = 32 * 1024
LINES_AHEAD = 1000
REMEMBERED_MOST = 1000
DIAL_SECONDS = 20.0
HANG_UP_SECONDS = 20.0
"""Seconds that the agent waits after its last frame for the client to close the connection."""

FindUnit = Callable[[str, str], tuple[Engine, Unit]]
"""(instance uid, task or empty) → engine and unit; raises `NotFound` or `Invalid`."""
ServeSession = Callable[[SessionSpec, Duplex], Awaitable[None]]
"""Serves a session from its connection to its end."""
NO_MORE: Mapping[str, ServeSession] = MappingProxyType({})
LoadImage = Callable[[SessionSpec, Duplex], Awaitable[bytes]]
"""Loads the image that the client uploads; returns the final message for the client."""


class _Size(msgspec.Struct):
    rows: int
    columns: int


class Streams:
    """Serves at most `most` sessions at once; a session ends when either side ends."""

    def __init__(
        self, link: Link, find: FindUnit, load: LoadImage, *, most: int, more: Mapping[str, ServeSession] = NO_MORE
    ) -> None:
        """`more`: functions that serve further verbs."""
        self._link, self._find, self._load, self._most, self._more = link, find, load, most, more
        self._open: dict[str, asyncio.Task[None]] = {}
        self._served: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    # Reader of the feed.

    def listed(self, items: Sequence[Object], source: Source) -> None:
        for item in items:
            self.changed(Change(source.revision, None, item), source)

    def changed(self, change: Change, source: Source) -> None:
        session = change.after
        if isinstance(session, Session) and session.meta.uid not in self._served:
            self._served[session.meta.uid] = None
            if len(self._served) > REMEMBERED_MOST:
                del self._served[next(iter(self._served))]
            self._serve(session)

    def lost(self, error: MandorError, failures: int) -> None:
        log.debug("cannot watch sessions: %s", error)

    async def close(self) -> None:
        for task in self._open.values():
            task.cancel()
        await asyncio.gather(*self._open.values(), return_exceptions=True)

    def _serve(self, session: Session) -> None:
        uid = session.meta.uid
        full = len(self._open) >= self._most
        task = asyncio.ensure_future(self._run(session, full=full))
        self._open[uid] = task
        task.add_done_callback(lambda _: self._open.pop(uid, None))

    async def _run(self, session: Session, *, full: bool) -> None:
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                line = await self._link.dial(session)
        except (MandorError, OSError, TimeoutError) as error:
            log.warning("cannot connect to the server of session %s: %s", session.meta.name, str(error) or "no answer")
            return
        async with line:
            try:
                if full:
                    raise TooMany(
                        f"this node already serves {self._most} sessions, its limit", hint="try again in a moment"
                    )
                await self._join(session.spec, line)
            except MandorError as error:
                await _send_problem(line, error)
            except OSError as error:
                log.info("session %s was interrupted: %s", session.meta.name, error)
            except Exception as error:  # A third-party engine may raise anything.
                log.exception("session %s raised an exception", session.meta.name)
                await _send_problem(line, MandorError(f"{type(error).__name__}: {error}"))

    async def _join(self, spec: SessionSpec, line: Duplex) -> None:
        if spec.verb == "load":
            await line.send(bytes([END]) + await self._load(spec, line))
            await wait_for_hang_up(line)
            return
        if spec.verb in self._more:
            await self._more[spec.verb](spec, line)
            return
        engine, unit = self._find(spec.uid, spec.task)
        if spec.verb == "logs":
            await until_first(_send_logs(engine, unit, spec, line), _until_closed(line))
            return
        running = await engine.exec(unit, spec.command, terminal=spec.terminal, rows=spec.rows, columns=spec.columns)
        try:
            if not spec.stdin:
                await running.write(b"")
            await until_first(_send_output(running, line), _take_input(running, line))
        finally:
            await running.close()
        await wait_for_hang_up(line)


async def until_first(*works: Coroutine[None, None, None]) -> None:
    """Run the works until one ends, and cancel the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_closed(line: Duplex) -> None:
    while await line.receive() is not None:
        pass


# Logs.


async def _send_logs(engine: Engine, unit: Unit, spec: SessionSpec, line: Duplex) -> None:
    """Send log lines; lines that are available together share a frame."""
    ahead: asyncio.Queue[LogLine | None] = asyncio.Queue(LINES_AHEAD)

    async def read() -> None:
        try:
            async for each in engine.logs(unit, follow=spec.follow, tail=spec.tail, since=spec.since):
                await ahead.put(each)
        except Exception:
            await ahead.put(None)
            raise
        await ahead.put(None)

    reading = asyncio.ensure_future(read())
    try:
        over = False
        while not over:
            lines, over = _take_ready(await ahead.get(), ahead)
            for frame in _frames(lines):
                await line.send(frame)
        await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def _take_ready(first: LogLine | None, ahead: "asyncio.Queue[LogLine | None]") -> tuple[list[LogLine], bool]:
    lines: list[LogLine] = []
    while first is not None:
        lines.append(first)
        if ahead.empty():
            return lines, False
        first = ahead.get_nowait()
    return lines, True


def _frames(lines: Sequence[LogLine]) -> list[bytes]:
    frames: list[bytearray] = []
    for each in lines:
        channel = STDERR if each.stream == "stderr" else STDOUT
        text = msgspec.json.encode({"at": each.at, "stream": each.stream, "text": each.text.decode("utf-8", "replace")})
        if not frames or frames[-1][0] != channel or len(frames[-1]) + len(text) > FRAME_MOST:
            frames.append(bytearray([channel]))
        frames[-1] += text + b"\n"
    return [bytes(frame) for frame in frames]


# Exec.


async def _send_output(running: Execution, line: Duplex) -> None:
    while (chunk := await running.read()) is not None:
        stream, data = chunk
        channel = STDERR if stream == "stderr" else STDOUT
        for start in range(0, len(data), FRAME_MOST):
            await line.send(bytes([channel]) + data[start : start + FRAME_MOST])
    code = await running.wait()
    await line.send(bytes([END]) + msgspec.json.encode({"code": code}))


async def _take_input(running: Execution, line: Duplex) -> None:
    while (frame := await line.receive()) is not None:
        if not frame:
            continue
        channel, data = frame[0], frame[1:]
        if channel == STDIN:
            await running.write(data)
        elif channel == RESIZE:
            size = _size(data)
            if size is not None:
                await running.resize(size.rows, size.columns)


def _size(data: bytes) -> _Size | None:
    try:
        size = msgspec.json.decode(data, type=_Size)
    except msgspec.DecodeError:
        return None
    return size if 0 < size.rows < 10_000 and 0 < size.columns < 10_000 else None


async def wait_for_hang_up(line: Duplex) -> None:
    """Wait for the client to close: closing with unread input resets the connection and loses the last frame."""
    with suppress(TimeoutError):
        async with asyncio.timeout(HANG_UP_SECONDS):
            await _until_closed(line)


async def _send_problem(line: Duplex, error: MandorError) -> None:
    problem = {"code": error.code, "title": error.message, "detail": error.message, "hint": error.hint}
    try:
        await line.send(bytes([END]) + msgspec.json.encode(problem))
        await wait_for_hang_up(line)
    except (MandorError, OSError):
        log.debug("the client is gone; error not sent: %s", error)


def choose_task(named: str, mains: Sequence[str], tasks: Sequence[str]) -> str:
    """Return the task of a session; without a name, the only main task."""
    if named:
        if named not in tasks:
            raise NotFound(f"there is no task {named}", hint=f"tasks: {', '.join(tasks)}")
        return named
    if len(mains) == 1:
        return mains[0]
    raise Invalid("the instance has several main tasks", hint=f"name one of them: {', '.join(mains)}")
