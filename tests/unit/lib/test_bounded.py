"""Work with a bound: as within `asyncio.timeout`, without a timer where nothing is waited for."""

import asyncio
from typing import Any

import pytest

from mandor.lib.bounded import bounded


@pytest.fixture
async def timers(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    set_for: list[float] = []
    loop = asyncio.get_running_loop()
    call_at = loop.call_at

    def counted(when: float, *args: Any, **options: Any) -> asyncio.TimerHandle:
        set_for.append(when)
        return call_at(when, *args, **options)

    monkeypatch.setattr(loop, "call_at", counted)
    return set_for


async def test_what_does_not_wait_takes_no_timer(timers: list[float]) -> None:
    async def work() -> int:
        return 3

    assert await bounded(5, work()) == 3
    assert timers == []


async def test_what_waits_goes_on_to_its_end(timers: list[float]) -> None:
    async def work() -> int:
        task = asyncio.current_task()
        for _ in range(3):
            await asyncio.sleep(0)
        assert asyncio.current_task() is task
        return 3

    assert await bounded(5, work()) == 3
    assert len(timers) == 1


async def test_any_awaitable_will_do() -> None:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(answer.set_result, 4)
    assert await bounded(5, answer) == 4


@pytest.mark.parametrize("waits", [False, True])
async def test_what_it_raises_comes_through(waits: bool) -> None:
    async def work() -> None:
        if waits:
            await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await bounded(5, work())


async def test_what_it_waits_for_may_fail_and_it_may_go_on() -> None:
    failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(failing.set_exception, OSError("gone"))

    async def work() -> str:
        try:
            await failing
        except OSError as error:
            await asyncio.sleep(0)
            return str(error)
        return "never"

    assert await bounded(5, work()) == "gone"


async def test_what_takes_too_long_is_cancelled_where_it_waits() -> None:
    steps: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned up")

    with pytest.raises(TimeoutError):
        await bounded(0.001, work())
    assert steps == ["cleaned up"]


async def test_cancelling_the_waiter_cancels_the_work() -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("cleaned up")

    task = asyncio.ensure_future(bounded(60, work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["cleaned up"]


async def test_bounds_within_it_hold() -> None:
    async def work() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "given up"
        return "never"

    assert await bounded(60, work()) == "given up"
