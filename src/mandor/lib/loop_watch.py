"""LoopWatch: how late the event loop is, and, when something holds it for long, what that was.

While one step computes, nobody is answered. A thread beside the loop looks whether it still turns; if it does not, it
notes where the loop is just now, which is the only way to learn the name of a step that is not over.
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
"""A step that holds the loop for longer is named."""
TELL_SECONDS = 60.0
"""The same place is told of no more often."""
PLACES_MOST = 200
SHOWN = 6
"""So many frames of a stack are told."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the loop was."""

    step: str
    """The innermost function of ours, `module:function`."""
    stack: tuple[str, ...]


class LoopWatch:
    """Use: `await watch.run()` beside what it watches, until cancelled."""

    def __init__(self, *, slow_seconds: float = SLOW_SECONDS, tick_seconds: float = TICK_SECONDS) -> None:
        self._slow_seconds, self._tick_seconds = slow_seconds, tick_seconds
        self._lag = Spread()
        self._longest = 0.0
        self.slow = Counts()
        """How often a step was found that held the loop for long."""
        self._told: dict[str, float] = {}
        self._turned_at = 0.0
        self._seen: Place | None = None
        """Where it was when it was late; the loop takes it when it turns again."""
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
        yield histogram("mandor_loop_lag_seconds", "How late the event loop was, looked at often.", self._lag)
        longest, self._longest = self._longest, 0.0
        yield gauge("mandor_loop_lag_longest_seconds", "The latest it was since somebody asked.", longest)
        yield counter("mandor_loop_slow_steps_total", "Steps that held the loop for long.", self.slow, "step")

    def _note(self, lag: float, computed: float, now: float) -> None:
        lag = max(0.0, lag)
        self._lag.add(lag)
        self._longest = max(self._longest, lag)
        seen, self._seen = self._seen, None
        # A machine that is busy with others holds the loop, too: that is nobody's step.
        if seen is None or lag < self._slow_seconds or computed < lag / 2:
            return
        if len(self.slow) < PLACES_MOST or (seen.step,) in self.slow:
            self.slow[(seen.step,)] += 1
        if now - self._told.get(seen.step, -TELL_SECONDS) < TELL_SECONDS:
            return
        if len(self._told) >= PLACES_MOST:
            self._told.clear()
        self._told[seen.step] = now
        log.warning(
            "the event loop was held for %d ms, of which it computed %d: %s",
            *(round(lag * 1000), round(computed * 1000), seen.step),
            extra={"facts": {"stack": list(seen.stack)}},
        )

    def _look(self, thread: int) -> None:
        """In a thread of its own."""
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
