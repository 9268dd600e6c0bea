"""Clocks behind an interface, so that tests and the simulator can control time."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Alarm(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Return the wall clock time in Unix seconds; for people and records, never for measuring durations."""

    def monotonic(self) -> float:
        """Return monotonic seconds; for waits, leases and timeouts."""

    async def sleep(self, seconds: float) -> None: ...

    def alarm(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        """Call `ring` once after this many seconds, without a task; the result cancels it."""


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def alarm(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        return asyncio.get_running_loop().call_later(seconds, ring)


class BootClock(SystemClock):
    """A clock whose monotonic time includes the time that the machine was suspended."""

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


_Sleeper = tuple[float, int, Callable[[], None]]


class ManualClock:
    """A clock that advances only through `advance`; sleepers wake in order."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._time = start
        self._sleepers: list[_Sleeper] = []
        self._count = 0

    def now(self) -> float:
        return self._time

    def monotonic(self) -> float:
        return self._time

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        alarm = self.alarm(seconds, lambda: None if wake.done() else wake.set_result(None))
        try:
            await wake
        finally:
            alarm.cancel()

    def alarm(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        self._count += 1
        entry = (self._time + seconds, self._count, ring)
        self._sleepers.append(entry)
        return _ManualAlarm(self._sleepers, entry)

    async def advance(self, seconds: float) -> None:
        """Advance by `seconds`, waking sleepers on the way and letting them run."""
        until = self._time + seconds
        await settle()
        while True:
            due = [entry for entry in self._sleepers if entry[0] <= until]
            if not due:
                break
            first = min(due, key=lambda entry: entry[:2])
            self._time = max(self._time, first[0])
            self._sleepers.remove(first)
            first[2]()
            await settle()
        self._time = until
        await settle()


class _ManualAlarm:
    def __init__(self, among: list[_Sleeper], entry: _Sleeper) -> None:
        self._among, self._entry = among, entry

    def cancel(self) -> None:
        if self._entry in self._among:
            self._among.remove(self._entry)


async def settle(rounds: int = 50) -> None:
    """Let all runnable tasks run."""
    for _ in range(rounds):
        await asyncio.sleep(0)


async def wait_event(clock: Clock, seconds: float | None, event: asyncio.Event) -> None:
    """Wait until the event is set; after `seconds` (None: never) set it.

    For events that have one reader, which clears the event before it acts on it.
    """
    if event.is_set() or (seconds is not None and seconds <= 0):
        await asyncio.sleep(0)
        return
    if seconds is None:
        await event.wait()
        return
    alarm = clock.alarm(seconds, event.set)
    try:
        await event.wait()
    finally:
        alarm.cancel()
