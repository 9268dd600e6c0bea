"""IdleTimers: calls back for thousands of idle watchers with a single event loop timer."""

import asyncio
import random
from collections.abc import Callable
from math import ceil

STEP_SECONDS = 0.1
"""Width of a time step; timers of the same step fire together."""
EARLY_SECONDS = 0.005
"""Seconds by which an event loop timer may fire early."""


class IdleTimer:
    """One timer. `since` is the start of the idle time; setting it costs nothing else."""

    __slots__ = ("fire", "seconds", "since", "step")

    def __init__(self, fire: Callable[[], None], seconds: float) -> None:
        self.fire = fire
        # Spread them: timers that were started together would otherwise always fire together.
        self.seconds = seconds * random.uniform(0.8, 1.2)
        self.since = 0.0
        self.step = 0


class IdleTimers:
    def __init__(self) -> None:
        self._steps: dict[int, dict[IdleTimer, None]] = {}
        """Timers by the step in which they are next examined."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0

    def __len__(self) -> int:
        return sum(map(len, self._steps.values()))

    def add(self, fire: Callable[[], None], seconds: float) -> IdleTimer:
        """Call `fire` after about so many `seconds` without activity, repeatedly; it must not raise."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._timer = loop, None
        timer = IdleTimer(fire, seconds)
        timer.since = loop.time()
        self._file(timer, timer.since + timer.seconds)
        if self._timer is None or timer.step < self._next:
            self._arm(loop)
        return timer

    def drop(self, timer: IdleTimer) -> None:
        others = self._steps.get(timer.step)
        if others is not None:
            others.pop(timer, None)
            if not others:
                del self._steps[timer.step]

    def _file(self, timer: IdleTimer, at: float) -> None:
        timer.step = ceil(at / STEP_SECONDS)
        self._steps.setdefault(timer.step, {})[timer] = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._steps:
            self._next = min(self._steps)
            self._timer = loop.call_at(self._next * STEP_SECONDS, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for timer in self._steps.pop(self._next, ()):
            at = timer.since + timer.seconds
            if at <= now + EARLY_SECONDS:
                timer.fire()
                at = now + timer.seconds
            self._file(timer, at)
        self._arm(loop)
