"""Garbage collection for a process that must answer at once: little and often, and not over what lives long.

A server with thousands of connections holds some hundred thousand objects that Python's collector
would walk over again and again, each time for tens of milliseconds in which nobody is answered.
"""

import gc
import time

import psutil

from mandor.lib.clock import Clock

YOUNG_SECONDS = 0.1
"""What outlives so short a time is set aside, where the collector does not look."""
LOOK_SECONDS = 0.02
YOUNG_MOST = 10_000
"""When so many objects are new, nobody waits until there are more: to look at them takes milliseconds."""
MIDDLE_MOST = 20_000
"""When so many have been looked at once, or are new, they are looked at again, and set aside: the same."""
CHECK_SECONDS = 60.0
GROWTH = 2.0
"""What was set aside is looked at again when memory has grown so much: there may be garbage in it. It takes a second
in which nobody is answered, and so it waits until nobody asks."""
GROWTH_MOST = 4.0
"""When memory has grown so much, it waits no longer."""
QUIET_SECONDS = 1.0
QUIET_SHARE = 0.25
"""A second is quiet in which this process computes for no longer than this part of it."""
LEAST = 1 << 30
"""Bytes; below twice that nobody looks."""
SHARE = 8
"""Or below twice this part of the machine's memory, where that is less."""


async def collect_gently(clock: Clock) -> None:
    """Take over from the automatic collector until cancelled."""
    automatic = gc.isenabled()
    gc.disable()
    gc.freeze()  # without a look: what a server loads at its start lives as long as it does
    aside = _Aside(clock.monotonic())
    frozen, middle = clock.monotonic(), 0
    try:
        while True:
            await clock.sleep(LOOK_SECONDS)
            now, young = clock.monotonic(), gc.get_count()[0]
            if now - frozen >= YOUNG_SECONDS or middle + young >= MIDDLE_MOST:
                frozen, middle = now, 0
                gc.collect(1)
                gc.freeze()
            elif young >= YOUNG_MOST:
                middle += young
                gc.collect(0)
            aside.look(now)
    finally:
        gc.unfreeze()
        if automatic:
            gc.enable()


class _Aside:
    """What was set aside."""

    def __init__(self, now: float) -> None:
        self._clean = _at_least(memory_bytes())
        """How much there was after the last time that everything was looked at."""
        self._checked, self._growth = now, 1.0
        self._since, self._computed = now, computed_seconds()

    def look(self, now: float) -> None:
        """Collect everything if there is much more than after the last time."""
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            self._growth = memory_bytes() / self._clean  # to count what was set aside would take long itself
        if self._growth >= GROWTH and (self._quiet(now) or self._growth >= GROWTH_MOST):
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._clean, self._growth = _at_least(memory_bytes()), 1.0

    def _quiet(self, now: float) -> bool:
        """The last second was."""
        seconds = now - self._since
        if seconds < QUIET_SECONDS:
            return False
        computed = computed_seconds()
        share = (computed - self._computed) / seconds
        self._since, self._computed = now, computed
        return seconds < 2 * QUIET_SECONDS and share <= QUIET_SHARE


def _at_least(held: int) -> int:
    whole: int = psutil.virtual_memory().total
    return max(held, min(LEAST, whole // SHARE))


def memory_bytes() -> int:
    """What this process holds."""
    held: int = psutil.Process().memory_info().rss
    return held


def computed_seconds() -> float:
    """What this process has computed."""
    return time.process_time()
