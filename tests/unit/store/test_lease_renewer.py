"""A thread renews the lease: a busy event loop keeps it, a hung one loses it."""

import asyncio
import time
from collections.abc import Callable
from threading import Event

import pytest

from mandor.errors import Conflict, Unavailable
from mandor.store.lease_renewer import LeaseRenewer

LIMIT_SECONDS = 60.0
LONG, SHORT = 300.0, 0.2
"""Lease durations that do not expire in a test, and that do."""


class Renewals:
    """A renewal function with scripted results that records its calls."""

    def __init__(self, answer: Callable[[], bool] = lambda: True) -> None:
        self.count = 0
        self.answer = answer

    def __call__(self, most_seconds: float) -> bool:
        self.count += 1
        return self.answer()


def hold(until: Callable[[], bool]) -> None:
    """Blocks the event loop."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.005)


async def begun(renew: Callable[[float], bool], seconds: float) -> "asyncio.Task[None]":
    task = asyncio.create_task(LeaseRenewer("test", renew, seconds, 0.01).run())
    await asyncio.sleep(0)
    return task


async def ended(task: "asyncio.Task[None]") -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        await task


def raising(error: Exception) -> Callable[[], bool]:
    def answer() -> bool:
        raise error

    return answer


@pytest.mark.req("S0-18")
async def test_the_lease_is_renewed_while_the_loop_is_held() -> None:
    renew = Renewals()
    task = await begun(renew, LONG)
    hold(lambda: renew.count >= 5)
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})


async def test_a_loop_that_hangs_for_a_whole_lease_stops_the_renewal() -> None:
    renew = Renewals()
    task = await begun(renew, SHORT)
    time.sleep(SHORT * 3)
    last = renew.count
    time.sleep(SHORT)
    assert renew.count == last
    await ended(task)


async def test_a_lost_lease_ends_the_renewal() -> None:
    await ended(await begun(Renewals(lambda: False), LONG))


@pytest.mark.parametrize("error", [Unavailable("no answer"), Conflict("moved on")])
async def test_a_lease_that_cannot_be_renewed_counts_as_lost_before_it_expires(error: Exception) -> None:
    renew = Renewals(raising(error))
    await ended(await begun(renew, SHORT))
    assert renew.count > 1


async def test_a_single_failed_renewal_keeps_the_lease() -> None:
    answers = iter([False])
    renew = Renewals()
    renew.answer = lambda: next(answers, True) or raising(Unavailable("once"))()
    task = await begun(renew, LONG)
    hold(lambda: renew.count >= 3)
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})


async def test_after_cancellation_no_renewal_is_in_progress() -> None:
    inside, go_on = Event(), Event()

    def answer() -> bool:
        inside.set()
        return go_on.wait(LIMIT_SECONDS)

    renew = Renewals(answer)
    task = await begun(renew, LONG)
    hold(inside.is_set)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=0.05)
    assert not done
    go_on.set()
    await asyncio.wait({task})
    assert task.cancelled()
    assert renew.count == 1


async def test_an_unexpected_error_is_raised_and_not_treated_as_a_lost_lease() -> None:
    with pytest.raises(ZeroDivisionError):
        await ended(await begun(Renewals(raising(ZeroDivisionError())), LONG))
