"""Garbage collection for a process that must answer at once: little and often, and not over what lives long.

A server with thousands of connections holds some hundred thousand objects that Python's collector
would walk over again and again, each time for tens of milliseconds in which nobody is answered.
"""

import gc

import psutil

from mandor.lib.clock import Clock

YOUNG_SECONDS = 0.1
"""What outlives so short a time is set aside, where the collector does not look."""
LOOK_SECONDS = 0.02
YOUNG_MOST = 20_000
"""When so many objects are new, nobody waits until there are more: to look at them takes milliseconds."""
CHECK_SECONDS = 60.0
GROWTH = 2.0
"""What was set aside is looked at again when memory has grown so much: there may be garbage in it."""
LEAST = 1 << 30
"""Bytes; below twice that nobody looks: it takes a second in which nobody is answered."""
SHARE = 8
"""Or below twice this part of the machine's memory, where that is less."""


async def collect_gently(clock: Clock) -> None:
    """Take over from the automatic collector until cancelled."""
    automatic = gc.isenabled()
    gc.disable()
    gc.freeze()  # without a look: what a server loads at its start lives as long as it does
    clean, checked, frozen = _at_least(memory_bytes()), clock.monotonic(), clock.monotonic()
    try:
        while True:
            await clock.sleep(LOOK_SECONDS)
            now = clock.monotonic()
            if now - frozen >= YOUNG_SECONDS:
                frozen = now
                gc.collect(1)
                gc.freeze()
            elif gc.get_count()[0] >= YOUNG_MOST:
                gc.collect(0)
            if now - checked >= CHECK_SECONDS:
                checked = now
                clean = _look_again(clean)
    finally:
        gc.unfreeze()
        if automatic:
            gc.enable()


def _look_again(clean: int) -> int:
    """Collect everything if there is much more than after the last time; how much there was then."""
    if memory_bytes() < clean * GROWTH:  # to count what was set aside would take long itself
        return clean
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    return _at_least(memory_bytes())


def _at_least(held: int) -> int:
    whole: int = psutil.virtual_memory().total
    return max(held, min(LEAST, whole // SHARE))


def memory_bytes() -> int:
    """What this process holds."""
    held: int = psutil.Process().memory_info().rss
    return held
