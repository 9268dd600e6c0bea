"""Giving up when nothing comes for a while."""

import asyncio

import pytest

from mandor.lib.silence import Silence
from mandor.sim.virtual import run_virtual


async def _listen(*pauses: float) -> None:
    """Things come after these pauses, and then none any more."""
    async with Silence(10) as silence:
        for pause in pauses:
            await asyncio.sleep(pause)
            silence.broken()
        await asyncio.Event().wait()


async def _ends_after(*pauses: float) -> float:
    begun = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await _listen(*pauses)
    return asyncio.get_running_loop().time() - begun


@pytest.mark.parametrize(
    ("pauses", "after"), [((), 10), ((1,), 11), ((9.5, 9.5, 0.1), 29.1), ((0.3,) * 100, 40), ((11,), 10)]
)
def test_it_ends_so_long_after_the_last_that_came(pauses: tuple[float, ...], after: float) -> None:
    assert run_virtual(_ends_after(*pauses)) == pytest.approx(after, abs=0.002)


def test_a_call_that_ends_in_time_and_its_errors_pass_through() -> None:
    async def leave() -> None:
        async with Silence(10):
            await asyncio.sleep(9)
            raise ValueError("no")

    async def look() -> None:
        with pytest.raises(ValueError, match="no"):
            await leave()
        await asyncio.sleep(100)

    run_virtual(look())


def test_cancellation_is_passed_on() -> None:
    async def cancel() -> None:
        task = asyncio.ensure_future(_listen())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(cancel())
