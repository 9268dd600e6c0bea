"""Waiting for news or for a while, whichever comes first."""

import asyncio

from mandor.lib.clock import Clock


async def doze(clock: Clock, seconds: float | None, news: asyncio.Event) -> None:
    """As `sleep_or`, for news that its only reader clears before he looks: the alarm counts as news itself."""
    if seconds is None or seconds <= 0 or news.is_set():
        await sleep_or(clock, seconds, news)
        return
    alarm = clock.alarm(seconds, news.set)
    try:
        await news.wait()
    finally:
        alarm.cancel()


async def sleep_or(clock: Clock, seconds: float | None, news: asyncio.Event) -> None:
    """Return when there is news, or after so long (None: only then); at once still lets others run."""
    if news.is_set() or (seconds is not None and seconds <= 0):
        await asyncio.sleep(0)
        return
    if seconds is None:
        await news.wait()
        return
    sleeping = asyncio.ensure_future(clock.sleep(seconds))
    waking = asyncio.ensure_future(news.wait())
    try:
        await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sleeping, waking):
            task.cancel()
        await asyncio.gather(sleeping, waking, return_exceptions=True)
