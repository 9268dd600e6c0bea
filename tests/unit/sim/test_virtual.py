"""The loop that never waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as some

from mandor.sim.virtual import START, VirtualClock, run_virtual


def test_a_day_passes_as_fast_as_nothing_happens_in_it() -> None:
    async def wait() -> float:
        clock = VirtualClock()
        await clock.sleep(86_400)
        return clock.monotonic()

    assert run_virtual(wait()) == pytest.approx(START + 86_400)


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


def test_a_dependency_that_can_never_be_met_is_reported() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="no timer is due"):
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


Sleep = Callable[[float], Awaitable[None]]
NAPS = some.lists(some.lists(some.sampled_from((0.0, 1.0, 1.5, 5.0)), max_size=4), min_size=1, max_size=6)


def _diary(naps: Sequence[Sequence[float]], cancel_at: float, *, plain: bool) -> list[tuple[float, int, str]]:
    """Who goes on when, of sleepers one of which is ended."""

    async def work() -> list[tuple[float, int, str]]:
        clock, seen = VirtualClock(), list[tuple[float, int, str]]()
        sleep: Sleep = asyncio.sleep if plain else clock.sleep

        async def sleeper(number: int) -> None:
            try:
                for seconds in naps[number]:
                    await sleep(seconds)
                    seen.append((clock.monotonic(), number, "woke"))
            except asyncio.CancelledError:
                seen.append((clock.monotonic(), number, "ended"))

        tasks = [asyncio.ensure_future(sleeper(number)) for number in range(len(naps))]
        await asyncio.sleep(cancel_at)
        tasks[0].cancel()
        await asyncio.gather(*tasks)
        return seen

    return run_virtual(work())


@given(NAPS, some.sampled_from((0.0, 1.0, 2.5, 5.0)))
def test_sleepers_of_the_clock_go_on_exactly_when_those_of_asyncio_do(
    naps: list[list[float]], cancel_at: float
) -> None:
    assert _diary(naps, cancel_at, plain=False) == _diary(naps, cancel_at, plain=True)


def test_a_task_that_was_woken_may_cancel_many_alarms() -> None:
    async def work() -> list[float]:
        clock, woken = VirtualClock(), list[float]()
        alarms = [clock.alarm(50 + number, lambda: None) for number in range(300)]

        async def cancel_alarms() -> None:
            for _ in range(4):
                await clock.sleep(5)
                woken.append(clock.monotonic() - START)
                while alarms:
                    alarms.pop().cancel()

        async def sleep_on() -> None:
            for _ in range(10):
                await clock.sleep(2)

        await asyncio.gather(cancel_alarms(), sleep_on())
        return woken

    assert run_virtual(work()) == [5, 10, 15, 20]
