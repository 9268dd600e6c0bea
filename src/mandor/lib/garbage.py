"""Garbage collection for a process that must answer at once: little and often, and not over what lives long.

A server with thousands of connections holds some hundred thousand objects that Python's collector
would walk over again and again, each time for tens of milliseconds in which nobody is answered.
"""

import gc

from mandor.lib.clock import Clock

YOUNG_SECONDS = 0.25
"""What outlives so short a time is set aside, where the collector does not look."""
CLEAN_ROUNDS = 8
"""After so many rounds in a row that found next to nothing, only every `SELDOM` round looks, until one finds something:
most programs make few cycles, and what a round sets aside unseen, the next look at all of it finds."""
SELDOM = 8
CLEAN_SHARE = 0.01
"""Of what was looked at: less than that is next to nothing."""
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
    rounds = clean_rounds = 0
    try:
        while True:
            await clock.sleep(YOUNG_SECONDS)
            rounds += 1
            if clean_rounds < CLEAN_ROUNDS or rounds % SELDOM == 0:
                clean_rounds = clean_rounds + 1 if _collect_young() else 0
            gc.freeze()
            if clock.monotonic() - checked >= CHECK_SECONDS:
                checked = clock.monotonic()
                clean = _look_again(clean)
    finally:
        gc.unfreeze()
        if automatic:
            gc.enable()


def _collect_young() -> bool:
    """True: there was next to nothing."""
    young, *_ = gc.get_count()
    return gc.collect(0) <= CLEAN_SHARE * young


def _look_again(clean: int) -> int:
    """Collect everything if there is much more than after the last time; how much there was then."""
    if gc.get_freeze_count() < clean * GROWTH:
        return clean
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    return max(LEAST, gc.get_freeze_count())
