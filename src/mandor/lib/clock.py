"""Time, behind an interface, so that tests and the simulator can turn the hands."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Wall time in seconds since the epoch: for people and records, never for judging silence."""

    def monotonic(self) -> float:
        """Seconds that only grow: for waits, leases and silence."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that stands still until `advance` is called; sleepers wake in order."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._time = start
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
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
        self._count += 1
        entry = (self._time + seconds, self._count, wake)
        self._sleepers.append(entry)
        try:
            await wake
        finally:
            if entry in self._sleepers:
                self._sleepers.remove(entry)

    async def advance(self, seconds: float) -> None:
        """Move on by `seconds`, waking sleepers on the way and letting them run."""
        until = self._time + seconds
        await settle()
        while True:
            due = sorted(entry for entry in self._sleepers if entry[0] <= until)
            if not due:
                break
            at, _, wake = due[0]
            self._time = max(self._time, at)
            self._sleepers.remove(due[0])
            if not wake.done():
                wake.set_result(None)
            await settle()
        self._time = until
        await settle()


async def settle(rounds: int = 50) -> None:
    """Let every task that can run do so."""
    for _ in range(rounds):
        await asyncio.sleep(0)
