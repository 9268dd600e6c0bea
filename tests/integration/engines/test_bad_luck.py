"""Faults with real daemons: full disks, reboots, many starts at once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Engine, Launch, Unit, UnitPhase
from mandor.engines.cri import CriEngine
from mandor.engines.docker import DockerEngine
from mandor.engines.incus import IncusEngine
from mandor.engines.podman import PodmanEngine
from mandor.engines.process import ProcessEngine
from mandor.errors import Unavailable
from mandor.lib.ids import new_uid
from mandor.testing.traces import find_traces
from tests.components.daemon import Daemon
from tests.components.disk import small_disk
from tests.components.image import NAME
from tests.components.incus import IMAGE

PATIENCE_SECONDS = 90.0
NewDaemon = Callable[..., Daemon]

ENGINES: dict[str, Callable[[Any, Path], Engine]] = {
    "docker": lambda daemon, folder: DockerEngine(folder, socket=daemon.socket),
    "podman": lambda daemon, folder: PodmanEngine(folder, socket=daemon.socket),
    "containerd": lambda daemon, folder: CriEngine(folder, socket=daemon.socket),
    "incus": lambda daemon, folder: IncusEngine(folder, url=daemon.url),
    "process": lambda _, folder: ProcessEngine(folder),
}
LISTS: dict[str, list[tuple[str, ...]]] = {
    "docker": [("ps", "--all", "--quiet"), ("volume", "ls", "--quiet"), ("network", "ls", "--quiet")],
    "podman": [("ps", "--all", "--quiet"), ("volume", "ls", "--quiet"), ("network", "ls", "--quiet")],
    "containerd": [("containers", "list", "--quiet"), ("tasks", "list", "--quiet"), ("snapshots", "list")],
    "incus": [
        ("list", "--format", "csv", "--columns", "n"),
        ("storage", "volume", "list", "default", "--format", "csv"),
    ],
}
"""Kinds of objects of each engine; a test leaves none of them."""


def unit(attempt: int = 0) -> Unit:
    return Unit(new_uid(), "main", attempt)


def launch(name: str) -> Launch:
    """A launch that prints `begun` and ends with 0 on the stop signal."""
    image = {"incus": IMAGE, "process": None}.get(name, NAME)
    script = "trap 'exit 0' TERM; echo begun; sleep 3600 & wait"
    return Launch(name="web-0", image=image, command=("sh", "-c", script))


def things(name: str, daemon: Daemon | None) -> list[int]:
    """Return the number of objects of each kind."""
    return [] if daemon is None else [len(daemon.cli(*words).splitlines()) for words in LISTS[name]]


async def no_more_than(before: list[int], name: str, daemon: Daemon | None) -> None:
    """Wait until removed objects are gone: some engines delete later."""

    async def as_few() -> bool:
        return all(now <= then for now, then in zip(things(name, daemon), before, strict=True))

    await until(as_few)


async def until(test: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await test():
            await asyncio.sleep(0.1)


async def answers(engine: Engine) -> bool:
    """Wait until the daemon is ready."""
    try:
        await engine.list()
    except Unavailable:
        return False
    return True


async def all_run(engine: Engine, units: list[Unit]) -> None:
    async def running() -> bool:
        seen = {each.unit: each.phase for each in await engine.list()}
        return seen == dict.fromkeys(units, UnitPhase.RUNNING)

    await until(running)


@asynccontextmanager
async def cleared(engine: Engine, units: list[Unit]) -> AsyncIterator[Engine]:
    """Check that nothing is left after the test."""
    async with engine:
        yield engine
        await asyncio.gather(*(engine.remove(each.unit) for each in await engine.list()))
        assert await engine.list() == []

    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := find_traces([each.uid for each in units]):
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("name", ["podman", "containerd", "incus"])
async def test_a_full_disk_is_reported_and_a_retry_succeeds(name: str, new_daemon: NewDaemon, tmp_path: Path) -> None:
    daemon = new_daemon(name, small=True)
    before, one = things(name, daemon), unit()
    async with cleared(ENGINES[name](daemon, tmp_path / "engine"), [one]) as engine:
        with daemon.full(), pytest.raises(Unavailable, match=r"no space left on device|out of disk space"):
            await engine.start(one, launch(name))
        assert await engine.list() == []
        await engine.start(one, launch(name))
        await all_run(engine, [one])
    await no_more_than(before, name, daemon)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "image", tmp_path / "disk", 8) as folder:
        folder.chmod(0o755)
        yield folder


async def test_the_process_engine_reports_a_full_disk_and_a_retry_succeeds(disk: Path) -> None:
    one = unit()
    async with cleared(ProcessEngine(disk / "engine"), [one]) as engine:
        assert await engine.list() == []
        fill = f"dd if=/dev/zero of={disk}/a bs=64k 2>/dev/null; dd if=/dev/zero of={disk}/b bs=1 2>/dev/null; true"
        subprocess.run(["sh", "-c", fill], check=True)
        with pytest.raises(Unavailable, match=r"[Nn]o space left on device"):
            await engine.start(one, launch("process"))
        assert await engine.list() == []
        for left in ("a", "b"):
            os.unlink(disk / left)
        await engine.start(one, launch("process"))
        await all_run(engine, [one])


@pytest.mark.parametrize("name", ["docker", "podman", "containerd", "incus"])
async def test_after_a_reboot_units_start_again_and_nothing_is_left(
    name: str, new_daemon: NewDaemon, tmp_path: Path
) -> None:
    daemon = new_daemon(name)
    before, old = things(name, daemon), [unit() for _ in range(2)]
    async with ENGINES[name](daemon, tmp_path / "engine") as engine:
        for each in old:
            await engine.start(each, launch(name))
        await all_run(engine, old)
    daemon.lose_power()
    daemon.boot()
    new = [Unit(each.uid, each.task, each.attempt + 1) for each in old]
    async with cleared(ENGINES[name](daemon, tmp_path / "engine"), old) as engine:
        await until(partial(answers, engine))
        seen = await engine.list()
        assert {each.unit for each in seen} <= set(old)
        assert {each.phase for each in seen} <= {UnitPhase.EXITED}
        for each, again in zip(old, new, strict=True):
            await engine.remove(each)
            await engine.start(again, launch(name))
        await all_run(engine, new)
    await no_more_than(before, name, daemon)


@pytest.mark.slow
@pytest.mark.req("S0-15")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "count"), [("process", 100), ("containerd", 50), ("podman", 20), ("incus", 8)])
async def test_many_units_start_at_once_and_leave_nothing_behind(
    name: str, count: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Number of units; fewer for engines with slow starts."""
    daemon = None if name == "process" else request.getfixturevalue(name)
    before, units = things(name, daemon), [unit() for _ in range(count)]
    async with cleared(ENGINES[name](daemon, tmp_path / "engine"), units) as engine:
        await asyncio.gather(*(engine.start(each, launch(name)) for each in units))
        await all_run(engine, units)
    await no_more_than(before, name, daemon)
