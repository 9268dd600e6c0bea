"""A queue of keys: one key is handled by one worker at a time, and never queued twice."""

import asyncio
import heapq
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from mandor.lib.clock import Alarm, Clock

K = TypeVar("K", bound=Hashable)


class KeyedQueue(Generic[K]):
    """Level-triggered work: adding a queued key changes nothing; adding a key that is being handled queues it again
    for when its worker is done.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ready: deque[K] = deque()
        self._queued: set[K] = set()
        self._busy: set[K] = set()
        self._again: set[K] = set()
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._count = 0
        self._idle: deque[asyncio.Future[None]] = deque()
        """Workers that wait for a key; each key wakes one of them."""
        self._alarm: Alarm | None = None
        self._alarm_at = 0.0
        self.failures: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._ready) + len(self._busy)

    @property
    def idle(self) -> bool:
        """Whether no key is ready or being handled; keys may be due later."""
        return not self._ready and not self._busy

    def add(self, key: K) -> None:
        if key in self._queued:
            return
        self._due.pop(key, None)
        if key in self._busy:
            self._again.add(key)
        else:
            self._queued.add(key)
            self._ready.append(key)
            self._wake_one()

    def add_after(self, key: K, seconds: float) -> None:
        """Queue the key after a delay; the shortest of several delays counts, and `add` overrides them."""
        at = self._clock.monotonic() + seconds
        if key in self._queued or self._due.get(key, at + 1) <= at:
            return
        self._due[key] = at
        self._count += 1
        heapq.heappush(self._later, (at, self._count, key))
        if self._idle:
            self._set_alarm()

    def done(self, key: K) -> None:
        self._busy.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    async def get(self) -> K:
        """Return the next key, marked as being handled until `done`."""
        self._promote()
        while not self._ready:
            await self._rest()
            self._promote()
        return self._take()

    def more(self, most: int) -> list[K]:
        """Return further ready keys, marked in the same way, for workers that handle several at once."""
        return [self._take() for _ in range(min(most, len(self._ready)))]

    def _take(self) -> K:
        key = self._ready.popleft()
        self._queued.discard(key)
        self._busy.add(key)
        return key

    def _promote(self) -> None:
        now = self._clock.monotonic()
        while self._later and self._later[0][0] <= now:
            at, _, key = heapq.heappop(self._later)
            if self._due.get(key) == at:
                del self._due[key]
                self.add(key)

    async def _rest(self) -> None:
        """Wait until a key may be ready."""
        waiter = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        self._set_alarm()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._idle:
                self._idle.remove(waiter)
            elif self._ready:
                self._wake_one()  # The key that woke this worker must wake another one.
            raise
        finally:
            if not self._idle and self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None

    def _wake_one(self) -> None:
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _set_alarm(self) -> None:
        """Set one alarm for all workers, for the time at which the next key is due."""
        if not self._later or (self._alarm is not None and self._alarm_at <= self._later[0][0]):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = self._later[0][0]
        self._alarm = self._clock.alarm(max(0.0, self._alarm_at - self._clock.monotonic()), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._promote()
        self._set_alarm()
