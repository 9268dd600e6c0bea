"""Garbage collection for a process that must answer at once: little and often, and not over what lives long.

A server with thousands of connections holds some hundred thousand objects that Python's collector
would walk over again and again, each time for tens of milliseconds in which nobody is answered.
"""

import gc

from mandor.lib.clock import Clock

YOUNG_SECONDS = 0.25
"""What outlives so short a time is set aside, where the collector does not look."""
CHECK_SECONDS = 60.0
GROWTH = 2.0
"""What was set aside is looked at again when it has grown so much: there may be garbage in it."""
LEAST = 1_000_000
"""Below twice that nobody looks: it takes a second in which nobody is answered, for a few hundred MiB at most."""


async def collect_gently(clock: Clock) -> None:
    """Take over from the automatic collector until cancelled."""
    automatic = gc.isenabled()
    gc.disable()
    gc.collect()
    gc.freeze()
    clean, checked = max(LEAST, gc.get_freeze_count()), clock.monotonic()
    try:
        while True:
            await clock.sleep(YOUNG_SECONDS)
            gc.collect(0)
            gc.freeze()
            if clock.monotonic() - checked >= CHECK_SECONDS:
                checked = clock.monotonic()
                clean = _look_again(clean)
    finally:
        gc.unfreeze()
        if automatic:
            gc.enable()


def _look_again(clean: int) -> int:
    """Collect everything if there is much more than after the last time; how much there was then."""
    if gc.get_freeze_count() < clean * GROWTH:
        return clean
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    return max(LEAST, gc.get_freeze_count())
