"""The gentle collector takes over, still finds garbage, and gives back what it took."""

import asyncio
import gc
import weakref

import pytest

from mandor.lib import garbage
from mandor.lib.clock import ManualClock
from mandor.lib.garbage import CHECK_SECONDS, YOUNG_SECONDS, collect_gently


class Loop:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.me = self


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_automatic_collector_rests_meanwhile_and_comes_back() -> None:
    clock = ManualClock()
    assert gc.isenabled()
    task = asyncio.create_task(collect_gently(clock))
    await clock.advance(1)
    assert not gc.isenabled()
    assert gc.get_freeze_count() > 0
    await stop(task)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


async def test_young_garbage_goes_at_once() -> None:
    clock = ManualClock()
    task = asyncio.create_task(collect_gently(clock))
    await clock.advance(YOUNG_SECONDS)
    seen = weakref.ref(Loop())
    assert seen() is not None
    await clock.advance(YOUNG_SECONDS * 2)
    assert seen() is None
    await stop(task)


async def test_old_garbage_goes_when_much_was_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([3, 4, 9, 9])
    monkeypatch.setattr(garbage, "LEAST", 1)
    monkeypatch.setattr(garbage, "memory_bytes", lambda: next(sizes))
    clock = ManualClock()
    task = asyncio.create_task(collect_gently(clock))
    await clock.advance(YOUNG_SECONDS)
    kept = [Loop() for _ in range(100)]
    await clock.advance(YOUNG_SECONDS * 2)
    seen = [weakref.ref(each) for each in kept]
    kept.clear()
    await clock.advance(YOUNG_SECONDS * 2)
    assert all(each() is not None for each in seen)
    await clock.advance(CHECK_SECONDS)
    assert all(each() is not None for each in seen)
    await clock.advance(CHECK_SECONDS)
    assert all(each() is None for each in seen)
    await stop(task)
