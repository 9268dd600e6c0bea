"""Waiting for news or for a while, whichever comes first."""

import asyncio

from mandor.lib.clock import Clock


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
