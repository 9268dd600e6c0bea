"""The loop that never waits."""

from __future__ import annotations

import asyncio
import time

import pytest

from mandor.sim.virtual import START, VirtualClock, run_virtual


def test_a_day_passes_as_fast_as_nothing_happens_in_it() -> None:
    async def wait() -> float:
        clock = VirtualClock()
        await clock.sleep(86_400)
        return clock.monotonic()

    began = time.process_time()
    assert run_virtual(wait()) == pytest.approx(START + 86_400)
    assert time.process_time() - began < 5


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    async def work() -> list[float]:
        woken: list[float] = []

        async def sleeper(seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append(seconds)

        await asyncio.gather(*(sleeper(each) for each in (30, 10, 20, 0.5)))
        return woken

    assert run_virtual(work()) == [0.5, 10, 20, 30]


def test_a_timeout_is_virtual_too() -> None:
    async def work() -> float:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(600):
                await asyncio.sleep(3600)
        return asyncio.get_running_loop().time() - begun

    assert run_virtual(work()) == pytest.approx(600)


def test_whoever_waits_for_what_never_comes_is_told() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="nothing is due"):
        run_virtual(wait())


def test_a_jump_of_the_wall_clock_does_not_touch_waits() -> None:
    async def work() -> tuple[float, float]:
        clock = VirtualClock()
        now, monotonic = clock.now(), clock.monotonic()
        clock.jump(-3600)
        await clock.sleep(10)
        return clock.now() - now, clock.monotonic() - monotonic

    wall, waited = run_virtual(work())
    assert wall == pytest.approx(-3590)
    assert waited == pytest.approx(10)
