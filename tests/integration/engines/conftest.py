"""A process engine for each test, with helpers that inspect its units."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Launch, Observed, Unit, UnitPhase
from mandor.engines.process import ProcessEngine
from mandor.engines.process.hierarchy import Hierarchies
from mandor.lib.ids import new_uid
from mandor.testing.traces import find_traces

WAIT_SECONDS = 60.0


async def no_process_has(words: str) -> None:
    """Wait until no process of this machine has these words in its command line."""
    deadline = time.monotonic() + WAIT_SECONDS
    while any(words in command for command in _commands()):
        assert time.monotonic() < deadline, f"a process still runs: {words}"
        await asyncio.sleep(0.1)


def _commands() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")


class Bench:
    """An engine with the operations that tests use."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.settings = settings
        self.engine = ProcessEngine(directory, **settings)
        self.uids: list[str] = []

    def unit(self) -> Unit:
        unit = Unit(new_uid(), "main", 0)
        self.uids.append(unit.uid)
        return unit

    async def start(self, script: str, **parts: Any) -> Unit:
        unit = self.unit()
        await self.engine.start(unit, Launch(**{"name": "test", "command": ("sh", "-c", script)} | parts))
        return unit

    async def look(self, unit: Unit) -> Observed | None:
        return next((observed for observed in await self.engine.list() if observed.unit == unit), None)

    async def ended(self, unit: Unit) -> Observed:
        deadline = time.monotonic() + WAIT_SECONDS
        while (observed := await self.look(unit)) is None or observed.phase is not UnitPhase.EXITED:
            assert time.monotonic() < deadline, f"{unit} does not end: {observed}"
            await asyncio.sleep(0.02)
        return observed

    async def output(self, unit: Unit) -> list[bytes]:
        return [line.text async for line in self.engine.logs(unit)]

    async def printed(self, unit: Unit, count: int = 1) -> list[bytes]:
        deadline = time.monotonic() + WAIT_SECONDS
        while len(lines := await self.output(unit)) < count:
            assert time.monotonic() < deadline, f"{unit} does not print: {lines}"
            await asyncio.sleep(0.02)
        return lines

    def folder(self, unit: Unit) -> Path:
        return self.directory / "units" / str(unit)

    async def again(self) -> ProcessEngine:
        """Replace the engine object by another one over the same folder, as after a restart of the agent."""
        await self.engine.close()
        self.engine = ProcessEngine(self.directory, **self.settings)
        return self.engine


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "engine")
    yield bench
    await clear(bench)


@pytest.fixture(params=[True, False], ids=["with cgroups", "without"])
async def each_bench(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """Each test runs with cgroups and without."""
    bench = Bench(tmp_path / "engine", limits=request.param)
    yield bench
    await clear(bench)


@pytest.fixture
async def bench_without_cgroups(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "engine", limits=False)
    yield bench
    await clear(bench)


async def clear(bench: Bench) -> None:
    for observed in await bench.engine.list():
        await bench.engine.remove(observed.unit)
    await bench.engine.close()
    place = Hierarchies.detect(bench.directory).paths("")
    await until(lambda: not any(map(os.path.exists, place)), lambda: f"left: {place}")
    await until(lambda: not find_traces(bench.uids), lambda: f"left: {find_traces(bench.uids)}")


async def until(condition: Callable[[], bool], complaint: Callable[[], str]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, complaint()
        await asyncio.sleep(0.02)


def lives(pid: int) -> bool:
    """Return whether a process runs and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].split()[0] not in {b"Z", b"X"}
    except OSError:
        return False


def find_pid(unit: Unit, inner: int) -> int:
    """Return the process id on the node of the process with the id `inner` in the namespace of the unit."""
    mark = f"MANDOR_UNIT={unit}".encode()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if mark not in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                continue
            status = Path("/proc", name, "status").read_text()
        except OSError:
            continue
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
        if int(numbers[-1]) == inner:
            return int(name)
    raise AssertionError(f"{unit} has no process {inner}")


def supervisor_of(bench: Bench, unit: Unit) -> int:
    from mandor.engines.process.folder import UnitFolder

    pid = UnitFolder(bench.folder(unit)).supervisor()
    assert pid is not None
    assert pid != os.getpid()
    return pid
