"""LoopWatch: measures the lag of the event loop, and finds the steps that block it.

While a step computes, no request is answered. A thread checks whether the loop still turns; if not, it records the
loop's stack, which is the only way to identify a step that has not ended.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from traceback import extract_stack
from types import FrameType

from mandor.lib.metrics import Counts, Family, Spread, counter, gauge, histogram

log = logging.getLogger("mandor.loop")

TICK_SECONDS = 0.05
SLOW_SECONDS = 0.1
"""Seconds after which a step that blocks the loop is reported."""
TELL_SECONDS = 60.0
"""Minimum seconds between reports of the same step."""
PLACES_MOST = 200
SHOWN = 6
"""Number of stack frames in a report."""


@dataclass(frozen=True, slots=True)
class Place:
    """Position of the loop in the code."""

    step: str
    """The innermost function of Mandor, `module:function`."""
    stack: tuple[str, ...]


class LoopWatch:
    """Use `await watch.run()` beside the watched code, until cancelled."""

    def __init__(self, *, slow_seconds: float = SLOW_SECONDS, tick_seconds: float = TICK_SECONDS) -> None:
        self._slow_seconds, self._tick_seconds = slow_seconds, tick_seconds
        self._lag = Spread()
        self._longest = 0.0
        self.slow = Counts()
        """Number of times that each step blocked the loop."""
        self._reported_at: dict[str, float] = {}
        self._turned_at = 0.0
        self._seen: Place | None = None
        """Position of a late loop; read by the loop when it turns again."""
        self._stop = threading.Event()

    async def run(self) -> None:
        """Measure until cancelled."""
        self._turned_at = time.monotonic()
        looking = threading.Thread(
            target=self._look, args=(threading.get_ident(),), name="mandor-loop-watch", daemon=True
        )
        looking.start()
        computed = time.thread_time()
        try:
            while True:
                asked = time.monotonic()
                await asyncio.sleep(self._tick_seconds)
                now, used = time.monotonic(), time.thread_time()
                self._turned_at = now
                self._note(now - asked - self._tick_seconds, used - computed, now)
                computed = used
        finally:
            self._stop.set()

    def families(self) -> Iterator[Family]:
        yield histogram("mandor_loop_lag_seconds", "Lag of the event loop.", self._lag)
        longest, self._longest = self._longest, 0.0
        yield gauge("mandor_loop_lag_longest_seconds", "Longest lag of the event loop since the last scrape.", longest)
        yield counter(
            "mandor_loop_slow_steps_total", "Steps that blocked the event loop for more than 100 ms.", self.slow, "step"
        )

    def _note(self, lag: float, computed: float, now: float) -> None:
        lag = max(0.0, lag)
        self._lag.add(lag)
        self._longest = max(self._longest, lag)
        seen, self._seen = self._seen, None
        # A busy machine delays the loop, too; then no step is to blame.
        if seen is None or lag < self._slow_seconds or computed < lag / 2:
            return
        if len(self.slow) < PLACES_MOST or (seen.step,) in self.slow:
            self.slow[(seen.step,)] += 1
        if now - self._reported_at.get(seen.step, -TELL_SECONDS) < TELL_SECONDS:
            return
        if len(self._reported_at) >= PLACES_MOST:
            self._reported_at.clear()
        self._reported_at[seen.step] = now
        log.warning(
            "the event loop was blocked for %d ms, %d ms of it computing: %s",
            *(round(lag * 1000), round(computed * 1000), seen.step),
            extra={"facts": {"stack": list(seen.stack)}},
        )

    def _look(self, thread: int) -> None:
        """Check the loop from a thread."""
        late = self._tick_seconds + self._slow_seconds
        while not self._stop.wait(self._slow_seconds / 2):
            if self._seen is None and time.monotonic() - self._turned_at > late:
                frame = sys._current_frames().get(thread)
                if frame is not None:
                    self._seen = _place(frame)


def _place(frame: FrameType) -> Place:
    stack = extract_stack(frame)
    ours = [each for each in stack if "/mandor/" in each.filename and not each.filename.endswith("loop_watch.py")]
    inner = (ours or list(stack))[-1]
    module = inner.filename.rpartition("/mandor/")[2].removesuffix(".py").replace("/", ".")
    shown = tuple(f"{each.filename}:{each.lineno} {each.name}" for each in stack[-SHOWN:])
    return Place(f"{module}:{inner.name}", shown)
