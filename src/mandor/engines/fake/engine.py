"""An engine without real processes: units start, print and end by the clock, as options and tests demand."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace

from mandor import __version__
from mandor.engines.base import Engine, Execution, Launch, LogLine, Observed, Unit, UnitPhase, Usage
from mandor.engines.change_notifier import ChangeNotifier
from mandor.engines.fake.execution import FakeExecution
from mandor.engines.fake.mounts import find_missing, write_files
from mandor.engines.fake.options import FakeOptions, fill_in, read_options
from mandor.engines.fake.state import FakeState, FileState, MemoryState, Record, Start
from mandor.errors import EngineDown, Invalid, NotFound
from mandor.lib.clock import Alarm, Clock, SystemClock
from mandor.model.image import ImageFile
from mandor.model.node import Capabilities

IMAGE_BYTES = 500 << 20
"""Size of every image, in bytes."""
TAR_MARK = b"ustar"
EXTRAS = frozenset(
    (
        *("logs", "exec", "signal", "stats", "events", "user", "security"),
        *("mounts", "links", "tmpfs", "ports", "hosts", "seed", "resolver"),
    )
)


class FakeEngine(Engine):
    """Units end with the engine object, unless a `directory` or `state` is given: then they outlive it, as real ones
    do.

    `images`: the engine announces that it runs images, as a container engine does, instead of programs of the node."""

    name: ClassVar[str] = "fake"
    options = FakeOptions

    def __init__(
        self,
        clock: Clock | None = None,
        seed: int = 0,
        *,
        directory: Path | None = None,
        state: FakeState | None = None,
        images: bool = False,
        exists: Callable[[str], bool] = os.path.exists,
    ) -> None:
        """`exists`: returns whether a path of the node exists, for mounts."""
        self._exists = exists
        self._clock = clock or SystemClock()
        self._seed = seed
        self._own = FileState(directory) if directory is not None and state is None else None
        self.state: FakeState = state or self._own or MemoryState()
        self._images = images
        self._notifier = ChangeNotifier()
        self._down: str | None = None
        self._hanging: dict[str, asyncio.Event] = {}
        self._refused: dict[Unit, int] = {}
        self._pulled: dict[str, int] = {}

    # Controls for tests.

    def down(self, message: str = "down, as requested") -> None:
        """Every verb raises `EngineDown` until `up`."""
        self._down = message
        self._notifier.notify()

    def up(self) -> None:
        self._down = None
        self._notifier.notify()

    @property
    def is_down(self) -> bool:
        return self._down is not None

    def hang(self, verb: str) -> None:
        """Every call of that verb (`list`, `start` …) waits until `release`."""
        self._hanging.setdefault(verb, asyncio.Event())

    def release(self, verb: str) -> None:
        hanging = self._hanging.pop(verb, None)
        if hanging is not None:
            hanging.set()

    def end(self, unit: Unit, exit_code: int | None = 1, *, reason: str = "", message: str = "") -> None:
        """End a unit now."""
        record = self._get(unit)
        reason = reason or ("Error" if exit_code else "Completed")
        self._change(record.ending(self._clock.monotonic(), exit_code, reason, message))

    def vanish(self, unit: Unit) -> None:
        self.end(unit, None, reason="Vanished", message="it vanished, as requested")

    def lose(self, unit: Unit) -> None:
        """Delete a unit as if another program had removed it."""
        self.state.delete(unit)
        self._notifier.notify()

    def launch(self, unit: Unit) -> Launch:
        """Return the launch of a unit."""
        return self._get(unit).launch

    @property
    def starts(self) -> Sequence[Start]:
        """Return all starts in order, including those of earlier agents."""
        return self.state.starts()

    # Required verbs.

    async def probe(self) -> Capabilities:
        await self._answer("probe")
        limits = frozenset({"cpu", "memory", "processes"})
        loads = frozenset({"archive"}) if self._images else frozenset[str]()
        return Capabilities(version=__version__, images=self._images, limits=limits, extras=EXTRAS, loads=loads)

    async def list(self) -> Sequence[Observed]:
        await self._answer("list")
        now = self._clock.monotonic()
        return [record.observed(now) for record in self.state.all()]

    async def start(self, unit: Unit, launch: Launch) -> None:
        await self._answer("start")
        if self.state.get(unit) is not None:
            return
        try:
            options = read_options(launch)
        except Invalid as error:
            options = FakeOptions(fail_start=str(error))
        await self._obstruct(options, hang=options.hang_start)
        refused = self._refused.get(unit, 0)
        if refused < options.down_starts:
            self._refused[unit] = refused + 1
            raise EngineDown(f"down for start {refused + 1} of {options.down_starts}, as requested")
        if self._images and launch.image:
            self._pulled[launch.image] = IMAGE_BYTES
        self.state.begin(self._plan(unit, launch, options))
        self._notifier.notify()

    def _plan(self, unit: Unit, launch: Launch, options: FakeOptions) -> Record:
        now = self._clock.monotonic()
        plain = replace(launch, options=dict(launch.options))
        ahead = self._clock.now() - now
        record = Record(unit=unit, launch=plain, begun_at=now, runs_at=now + options.start_delay, wall=ahead)
        if options.fail_start:
            message = options.fail_start if isinstance(options.fail_start, str) else "it cannot start, as requested"
            return record.ending(record.runs_at, None, "StartFailed", message)
        if problem := find_missing(launch, self._exists):
            return record.ending(record.runs_at, None, "StartFailed", problem)
        if not write_files(options.writes, launch):
            return record.ending(record.runs_at, 1, "Error", "it could not write its files")
        if options.ends(unit, self._seed):
            return record.ending(record.runs_at + (options.after or 0.0), *options.ending())
        return record

    async def stop(self, unit: Unit, *, grace_seconds: float) -> None:
        await self._answer("stop")
        record = self.state.get(unit)
        if record is None or self._over(record):
            return
        options = read_options(record.launch)
        await self._obstruct(options, hang=options.hang_stop)
        self._change(_stopped(record, options, self._clock.monotonic(), grace_seconds))
        while (record := self.state.get(unit)) is not None and not self._over(record):
            await self._clock.sleep(max(0.0, (record.ends_at or 0.0) - self._clock.monotonic()))
        self._notifier.notify()

    async def remove(self, unit: Unit) -> None:
        await self._answer("remove")
        record = self.state.get(unit)
        if record is not None:
            await self._obstruct(read_options(record.launch) if record.reason != "StartFailed" else FakeOptions())
            self.state.delete(unit)
            self._notifier.notify()

    # Optional verbs.

    def logs(
        self, unit: Unit, *, follow: bool = False, tail: int | None = None, since: float | None = None
    ) -> AsyncIterator[LogLine]:
        self._get(unit)
        return self._logs(unit, follow, tail, since)

    async def _logs(self, unit: Unit, follow: bool, tail: int | None, since: float | None) -> AsyncIterator[LogLine]:
        await self._answer("logs")
        record = self.state.get(unit)
        lines = _printed(record, self._clock.monotonic()) if record else []
        first = len(lines) if tail is None else min(tail, len(lines))
        shown = len(lines) - first
        while record is not None:
            for line in lines[shown:]:
                if since is None or line.at >= since:
                    yield line
            shown = max(shown, len(lines))
            if not follow or self._over(record):
                return
            await self._clock.sleep(0.05)
            record = self.state.get(unit)
            lines = _printed(record, self._clock.monotonic()) if record else []

    async def exec(
        self, unit: Unit, command: Sequence[str], *, terminal: bool = False, rows: int = 24, columns: int = 80
    ) -> Execution:
        await self._answer("exec")
        record = self.state.get(unit)
        if record is None or record.observed(self._clock.monotonic()).phase is not UnitPhase.RUNNING:
            raise NotFound(f"{unit} is not running", hint="exec needs a task that runs")
        return FakeExecution(command, record.launch, terminal=terminal, rows=rows, columns=columns)

    async def signal(self, unit: Unit, name: str) -> None:
        await self._answer("signal")
        record, now = self.state.get(unit), self._clock.monotonic()
        if record is None or record.observed(now).phase is not UnitPhase.RUNNING:
            raise NotFound(f"{unit} is not running", hint="a signal needs a task that runs")
        self._change(replace(record, signals=(*record.signals, (now, name))))

    async def usage(self) -> Mapping[Unit, Usage]:
        await self._answer("usage")
        now = self._clock.monotonic()
        found = {}
        for record in self.state.all():
            if record.observed(now).phase is UnitPhase.RUNNING:
                options = read_options(record.launch)
                found[record.unit] = Usage(options.cpu * (now - record.runs_at), int(options.memory))
        return found

    async def images(self) -> Mapping[str, int]:
        """Return the images of all started units and the loaded ones."""
        await self._answer("images")
        return dict(self._pulled)

    async def load_image(self, image: ImageFile, content: AsyncIterator[bytes]) -> bool:
        await self._answer("load_image")
        if not self._images:
            return await super().load_image(image, content)
        if image.names and set(image.names) <= self._pulled.keys():
            return False
        first = b""
        async for piece in content:
            first = first or piece
            await self._answer("load_image")
        if TAR_MARK not in first[:512]:
            raise Invalid("the file is not an image: it is not a tar file")
        self._pulled |= dict.fromkeys(image.names, image.size)
        return True

    def events(self) -> AsyncIterator[None]:
        return self._events(self._notifier.stream())

    async def _events(self, changes: AsyncIterator[None]) -> AsyncIterator[None]:
        alarm = self._set_alarm(self._clock.monotonic())
        try:
            async for _ in changes:
                now = self._clock.monotonic()  # subscribers list later than this
                yield
                if alarm is not None:
                    alarm.cancel()
                alarm = self._set_alarm(now)
        finally:
            if alarm is not None:
                alarm.cancel()

    async def close(self) -> None:
        self._notifier.close()
        if self._own is not None:
            self._own.close()

    # Helpers.

    def _set_alarm(self, since: float) -> Alarm | None:
        """Notify subscribers at the next planned change of a unit after `since`. An alarm that fires a little early is
        followed by another one for the same time."""
        left = self._next_change(since) - self._clock.monotonic()
        if left <= 0:
            self._notifier.notify()
        return self._clock.alarm(left, self._notifier.notify) if 0 < left < float("inf") else None

    def _next_change(self, since: float) -> float:
        ahead = [at for record in self.state.all() if (at := record.next_change(since)) is not None]
        return min(ahead, default=float("inf"))

    async def _answer(self, verb: str) -> None:
        hanging = self._hanging.get(verb)
        if hanging is not None:
            await hanging.wait()
        if self._down is not None:
            raise EngineDown(self._down)

    async def _obstruct(self, options: FakeOptions, *, hang: bool = False) -> None:
        if hang:
            await asyncio.Event().wait()
        if options.slow:
            await self._clock.sleep(options.slow)

    def _get(self, unit: Unit) -> Record:
        record = self.state.get(unit)
        if record is None:
            raise NotFound(f"there is no unit {unit} here")
        return record

    def _over(self, record: Record) -> bool:
        return record.observed(self._clock.monotonic()).phase is UnitPhase.EXITED

    def _change(self, record: Record) -> None:
        self.state.put(record)
        self._notifier.notify()


def _stopped(record: Record, options: FakeOptions, now: float, grace_seconds: float) -> Record:
    """Return the record of a unit after a stop order."""
    needed = grace_seconds if options.ignore_stop else options.stop_delay
    if options.ignore_stop or needed > grace_seconds:
        kill = 128 + signal.SIGKILL
        return record.ending(now + grace_seconds, kill, "Signalled", "SIGKILL after the grace for stopping")
    if options.stop_code is not None:
        return record.ending(now + needed, options.stop_code, "Error" if options.stop_code else "Completed")
    name = record.launch.stop_signal
    return record.ending(now + needed, 128 + signal.Signals[name], "Signalled", name)


def _printed(record: Record, now: float) -> list[LogLine]:
    """Return the lines that a unit has printed so far."""
    if now < record.runs_at or record.reason == "StartFailed":
        return []
    options = read_options(record.launch)
    until = now if record.ends_at is None else min(now, record.ends_at)
    lines = [
        LogLine(record.wall_time(record.runs_at), stream, part.encode())
        for stream, texts in (("stdout", options.stdout), ("stderr", options.stderr))
        for text in texts
        for part in fill_in(text, record.launch).split("\n")
    ]
    if options.on_signal:
        text = fill_in(options.on_signal, record.launch).encode()
        lines += [LogLine(record.wall_time(at), "stdout", text) for at, _ in record.signals]
    if options.every:
        count = int((until - record.runs_at) / options.every)
        times = (record.runs_at + (number + 1) * options.every for number in range(count))
        lines += [LogLine(record.wall_time(at), "stdout", f"tick {number}".encode()) for number, at in enumerate(times)]
    return lines
