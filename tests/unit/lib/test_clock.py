"""A clock whose hands a test turns."""

import asyncio

from mandor.lib.clock import ManualClock, SystemClock


async def test_time_stands_still_until_it_is_turned() -> None:
    clock = ManualClock(100.0)
    sleeping = asyncio.create_task(clock.sleep(10))
    await clock.advance(9.9)
    assert not sleeping.done()
    assert clock.now() == clock.monotonic() == 109.9
    await clock.advance(0.1)
    assert sleeping.done()


async def test_sleepers_wake_in_the_order_of_their_hour_and_see_it() -> None:
    clock = ManualClock(0.0)
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as tasks:
        for name, seconds in (("late", 3.0), ("early", 1.0), ("middle", 2.0), ("early too", 1.0)):
            tasks.create_task(sleeper(name, seconds))
        await clock.advance(10)
    assert woken == [("early", 1.0), ("early too", 1.0), ("middle", 2.0), ("late", 3.0)]


async def test_a_sleeper_that_sleeps_again_wakes_within_one_turn() -> None:
    clock = ManualClock(0.0)
    ticks: list[float] = []

    async def ticking() -> None:
        while True:
            await clock.sleep(1)
            ticks.append(clock.monotonic())

    task = asyncio.create_task(ticking())
    await clock.advance(3.5)
    assert ticks == [1.0, 2.0, 3.0]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await clock.advance(10)
    assert len(ticks) == 3


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(5))
    await clock.advance(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert clock._sleepers == []


async def test_the_clock_of_the_system_goes_on_by_itself() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0.001)
    assert clock.monotonic() > before
    assert clock.now() > 1_600_000_000
