"""Limits on starting units: concurrency, and starts that are revoked."""

from __future__ import annotations

import asyncio

import pytest

from mandor.agent.starts import ConcurrencyLimit, RevocableTask
from mandor.errors import Invalid, Unavailable


async def test_the_next_start_begins_when_one_of_the_limit_is_done() -> None:
    starts, begun = ConcurrencyLimit(1), []

    async def start(name: str, go_on: asyncio.Event) -> None:
        async with starts.take(60):
            begun.append(name)
            await go_on.wait()

    events = asyncio.Event(), asyncio.Event()
    tasks = [asyncio.ensure_future(start(name, event)) for name, event in zip("ab", events, strict=True)]
    await asyncio.sleep(0)
    assert (begun, starts.idle.is_set()) == (["a"], False)
    events[0].set()
    await tasks[0]
    assert starts.idle.is_set() is False
    events[1].set()
    await tasks[1]
    assert (begun, starts.idle.is_set()) == (["a", "b"], True)


async def test_a_long_start_gives_its_slot_back_and_goes_on() -> None:
    starts = ConcurrencyLimit(1)
    async with asyncio.timeout(20), starts.take(0.001):
        async with starts.take(60):
            assert not starts.idle.is_set()
        assert starts.idle.is_set()
    # The slot was released once, not twice.
    async with asyncio.timeout(20), starts.take(60):
        assert not await _gets_a_slot(starts)
    assert starts.idle.is_set()


async def test_a_cancelled_wait_takes_no_slot() -> None:
    starts = ConcurrencyLimit(1)
    async with starts.take(60):
        assert not await _gets_a_slot(starts)
    assert await _gets_a_slot(starts)
    assert starts.idle.is_set()


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_an_error_releases_the_slot(error: type[BaseException]) -> None:
    starts = ConcurrencyLimit(1)
    with pytest.raises(error):
        async with starts.take(60):
            raise error
    assert await _gets_a_slot(starts)


async def _gets_a_slot(starts: ConcurrencyLimit) -> bool:
    async def take() -> None:
        async with starts.take(60):
            pass

    taking = asyncio.ensure_future(take())
    for _ in range(3):
        await asyncio.sleep(0)
    done = taking.done()
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    return done


class Work:
    def __init__(self) -> None:
        self.done: list[str] = []
        self.gate = asyncio.Event()
        self.allowed = True

    async def run(self) -> str:
        self.done.append("first")
        try:
            await self.gate.wait()
            self.done.append("second")
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.done.append("undone")
            raise
        return "result"

    async def revocable(self) -> str:
        return await RevocableTask(self.run(), lambda: self.allowed, "not any longer")


async def test_a_task_that_is_not_revoked_runs_to_its_result() -> None:
    work = Work()
    running = asyncio.create_task(work.revocable())
    await asyncio.sleep(0)
    work.gate.set()
    assert await running == "result"
    assert work.done == ["first", "second"]


@pytest.mark.req("S0-25")
async def test_a_revoked_task_undoes_what_it_did() -> None:
    work = Work()
    running = asyncio.create_task(work.revocable())
    await asyncio.sleep(0)
    work.allowed = False
    work.gate.set()
    with pytest.raises(Unavailable, match="not any longer"):
        await running
    assert work.done == ["first", "undone"]


async def test_a_task_that_is_revoked_at_once_runs_nothing() -> None:
    work = Work()
    work.allowed = False
    with pytest.raises(Unavailable):
        await work.revocable()
    assert work.done == []


async def test_cancelling_a_revoked_task_cancels_it() -> None:
    work = Work()
    running = asyncio.create_task(work.revocable())
    await asyncio.sleep(0)
    work.allowed = False
    running.cancel()
    with pytest.raises((asyncio.CancelledError, Unavailable)):
        await running
    assert work.done == ["first", "undone"]


async def test_errors_of_the_task_are_raised() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise Invalid("wrong")

    with pytest.raises(Invalid):
        await RevocableTask(fails(), lambda: True, "not any longer")
