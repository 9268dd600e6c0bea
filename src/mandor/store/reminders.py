"""Reminders: whoever has heard nothing for a while is reminded of it, thousands of them by one timer."""

import asyncio
import random
from collections.abc import Callable
from math import ceil

STEP_SECONDS = 0.1
"""Those whose time comes within this are reminded together."""
EARLY_SECONDS = 0.005
"""A timer may ring a little early."""


class Reminder:
    """One of them. Time counts from `since`, which may be set anew as often as wanted: nothing else is done then."""

    __slots__ = ("remind", "seconds", "since", "step")

    def __init__(self, remind: Callable[[], None], seconds: float) -> None:
        self.remind = remind
        # Those that were woken together would otherwise be reminded together ever after.
        self.seconds = seconds * random.uniform(0.8, 1.2)
        self.since = 0.0
        self.step = 0


class Reminders:
    def __init__(self) -> None:
        self._steps: dict[int, dict[Reminder, None]] = {}
        """By when to look at them, in steps of time."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0

    def __len__(self) -> int:
        return sum(map(len, self._steps.values()))

    def add(self, remind: Callable[[], None], seconds: float) -> Reminder:
        """Call it whenever so much time, more or less, has passed without news; it must not raise."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._timer = loop, None
        reminder = Reminder(remind, seconds)
        reminder.since = loop.time()
        self._file(reminder, reminder.since + reminder.seconds)
        if self._timer is None or reminder.step < self._next:
            self._arm(loop)
        return reminder

    def drop(self, reminder: Reminder) -> None:
        others = self._steps.get(reminder.step)
        if others is not None:
            others.pop(reminder, None)
            if not others:
                del self._steps[reminder.step]

    def _file(self, reminder: Reminder, at: float) -> None:
        reminder.step = ceil(at / STEP_SECONDS)
        self._steps.setdefault(reminder.step, {})[reminder] = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._steps:
            self._next = min(self._steps)
            self._timer = loop.call_at(self._next * STEP_SECONDS, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for reminder in self._steps.pop(self._next, ()):
            at = reminder.since + reminder.seconds
            if at <= now + EARLY_SECONDS:
                reminder.remind()
                at = now + reminder.seconds
            self._file(reminder, at)
        self._arm(loop)
