"""Garbage collection for a process that must answer at once: little and often, and not over what lives long.

A server with thousands of connections holds some hundred thousand objects that Python's collector
would walk over again and again, each time for tens of milliseconds in which nobody is answered.
"""

import gc
import time

import psutil

from mandor.lib.clock import Clock

YOUNG_SECONDS = 0.1
"""Seconds after which surviving objects are frozen, so that the collector ignores them."""
LOOK_SECONDS = 0.02
YOUNG_MOST = 10_000
"""Number of new objects at which they are collected without waiting; takes a few milliseconds."""
MIDDLE_MOST = 20_000
"""Number of new and once collected objects at which they are collected and frozen without waiting."""
CHECK_SECONDS = 60.0
GROWTH = 2.0
"""Growth of memory at which frozen objects are collected again. This takes about a second in which requests are not
answered, so it waits for a quiet moment.
"""
GROWTH_MOST = 4.0
"""Growth of memory at which the collection does not wait any longer."""
QUIET_SECONDS = 1.0
QUIET_SHARE = 0.25
"""Maximum CPU share of this process in a quiet second."""
LEAST = 1 << 30
"""Bytes of memory; below twice this amount frozen objects are never collected."""
SHARE = 8
"""Share of the machine's memory that is used instead of `LEAST` if it is smaller."""


async def collect_gently(clock: Clock) -> None:
    """Replace the automatic collector until cancelled."""
    automatic = gc.isenabled()
    gc.disable()
    gc.freeze()  # objects loaded at start live as long as the process
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
    """The frozen objects."""

    def __init__(self, now: float) -> None:
        self._clean = _at_least(memory_bytes())
        """Memory in bytes after the last full collection."""
        self._checked, self._growth = now, 1.0
        self._since, self._computed = now, computed_seconds()

    def look(self, now: float) -> None:
        """Collect everything if memory has grown much since the last full collection."""
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            self._growth = memory_bytes() / self._clean  # counting the frozen objects would take long
        if self._growth >= GROWTH and (self._quiet(now) or self._growth >= GROWTH_MOST):
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._clean, self._growth = _at_least(memory_bytes()), 1.0

    def _quiet(self, now: float) -> bool:
        """Return whether the last second was quiet."""
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
    """Return the resident memory of this process."""
    held: int = psutil.Process().memory_info().rss
    return held


def computed_seconds() -> float:
    """Return the CPU seconds used by this process."""
    return time.process_time()
