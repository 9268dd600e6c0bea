"""The gentle collector takes over, still finds garbage, and gives back what it took."""

import asyncio
import gc
import weakref

import pytest

from mandor.lib import garbage
from mandor.lib.clock import ManualClock
from mandor.lib.garbage import (
    CHECK_SECONDS,
    LOOK_SECONDS,
    MIDDLE_MOST,
    YOUNG_MOST,
    YOUNG_SECONDS,
    collect_gently,
)


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


async def set_aside(clock: ManualClock) -> list[weakref.ref[Loop]]:
    """Garbage among what was set aside."""
    kept = [Loop() for _ in range(100)]
    await clock.advance(YOUNG_SECONDS * 2)
    return [weakref.ref(each) for each in kept]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What this process holds, and what it has computed."""
    found = {"held": 3.0, "computed": 0.0}
    monkeypatch.setattr(garbage, "LEAST", 1)
    monkeypatch.setattr(garbage, "memory_bytes", lambda: found["held"])
    monkeypatch.setattr(garbage, "computed_seconds", lambda: found["computed"])
    return found


async def pass_by(clock: ManualClock, seconds: float, measured: dict[str, float], share: float) -> None:
    """Some time in which this process computes for a part of it."""
    for _ in range(round(seconds * 2)):
        measured["computed"] += share / 2
        await clock.advance(0.5)


async def test_old_garbage_goes_at_a_quiet_moment_once_much_was_set_aside(measured: dict[str, float]) -> None:
    clock = ManualClock()
    task = asyncio.create_task(collect_gently(clock))
    await clock.advance(YOUNG_SECONDS)
    seen = await set_aside(clock)
    measured["held"] = 5
    await pass_by(clock, CHECK_SECONDS, measured, 0.0)
    assert all(each() is not None for each in seen)
    measured["held"] = 9
    await pass_by(clock, CHECK_SECONDS + 2, measured, 0.5)
    assert all(each() is not None for each in seen)
    await pass_by(clock, 2.5, measured, 0.1)
    assert all(each() is None for each in seen)
    await stop(task)


async def test_old_garbage_goes_at_any_moment_once_very_much_was_set_aside(measured: dict[str, float]) -> None:
    clock = ManualClock()
    task = asyncio.create_task(collect_gently(clock))
    await clock.advance(YOUNG_SECONDS)
    seen = await set_aside(clock)
    measured["held"] = 13
    await pass_by(clock, CHECK_SECONDS + 2, measured, 1.0)
    assert all(each() is None for each in seen)
    await stop(task)


async def test_no_look_is_at_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    clock = ManualClock()
    task = asyncio.create_task(collect_gently(clock))
    await clock.advance(YOUNG_SECONDS)
    kept: list[Loop] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            looks.append(sum(len(gc.get_objects(generation=each)) for each in range(info["generation"] + 1)))

    gc.callbacks.append(look)
    try:
        for _ in range(50):
            kept += [Loop() for _ in range(YOUNG_MOST // 4)]
            await clock.advance(LOOK_SECONDS / 2)
    finally:
        gc.callbacks.remove(look)
        await stop(task)
    assert max(looks) < MIDDLE_MOST * 2
