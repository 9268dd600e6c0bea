"""Scheduled backups are made on time, completely and across restarts; old ones are deleted last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mandor.lib.clock import ManualClock
from mandor.store.backups import Backups, made_at, name_at
from mandor.store.base import Put
from mandor.store.dump import count_objects
from mandor.store.memory import MemoryStore
from mandor.testing.store import make_workload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOUR = 3600.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000.0)


@asynccontextmanager
async def running(clock: ManualClock, folder: Path, *, keep: int = 3) -> AsyncIterator[Backups]:
    store = MemoryStore()
    await store.commit(Put(make_workload("web")))
    backups = Backups(store, clock, folder, every_seconds=HOUR, keep=keep)
    task = asyncio.create_task(backups.run())
    try:
        yield backups
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(met: Callable[[], bool]) -> None:
    """The files are written by threads."""
    async with asyncio.timeout(60):
        while not met():
            await asyncio.sleep(0.01)


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir()) if folder.exists() else []


def test_the_name_contains_the_time() -> None:
    assert made_at(name_at(1_800_000_000.0)) == 1_800_000_000.0


async def test_the_first_backup_is_made_at_once_complete_and_private(clock: ManualClock, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    async with running(clock, folder):
        await until(lambda: names(folder) == [name_at(clock.now())])
    made = folder / names(folder)[0]
    assert count_objects(made) == 1
    assert made.stat().st_mode & 0o077 == 0


async def test_a_backup_is_made_every_hour_and_the_newest_are_kept(clock: ManualClock, tmp_path: Path) -> None:
    (tmp_path / "mandor-mine.backup").touch()
    expected: list[str] = []
    async with running(clock, tmp_path):
        for _ in range(5):
            expected.append(name_at(clock.now()))
            await until(lambda: names(tmp_path)[:-1] == expected[-3:])
            await clock.advance(HOUR)
    assert names(tmp_path)[-1] == "mandor-mine.backup"


async def test_a_restart_does_not_make_a_backup_before_the_interval_is_over(clock: ManualClock, tmp_path: Path) -> None:
    (tmp_path / name_at(clock.now() - HOUR / 2)).touch()
    async with running(clock, tmp_path) as backups:
        assert await asyncio.to_thread(backups._wait) == HOUR / 2


async def test_a_backup_with_a_future_time_is_ignored(clock: ManualClock, tmp_path: Path) -> None:
    (tmp_path / name_at(clock.now() + 10 * HOUR)).touch()
    async with running(clock, tmp_path) as backups:
        await until((tmp_path / name_at(clock.now())).exists)
        assert await asyncio.to_thread(backups._wait) == HOUR


async def test_a_failed_backup_is_reported_leaves_no_file_and_is_retried(clock: ManualClock, tmp_path: Path) -> None:
    old = name_at(clock.now() - 2 * HOUR)
    (tmp_path / old).touch()
    hindrance = tmp_path / f".{name_at(clock.now())}.part"
    hindrance.mkdir()
    async with running(clock, tmp_path, keep=1) as backups:
        await until(lambda: backups.trouble.startswith("cannot write a backup to"))
        assert names(tmp_path) == [hindrance.name, old]
        hindrance.rmdir()
        await clock.advance(60)
        await until(lambda: not backups.trouble and names(tmp_path) == [name_at(clock.now())])
