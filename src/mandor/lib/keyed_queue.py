"""A queue of keys: one key is handled by one worker at a time, and never queued twice."""

import asyncio
import heapq
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from mandor.lib.clock import Clock

K = TypeVar("K", bound=Hashable)


class KeyedQueue(Generic[K]):
    """Level-triggered work: adding a queued key changes nothing; adding a key that is being
    handled queues it again for when its worker is done."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ready: deque[K] = deque()
        self._queued: set[K] = set()
        self._busy: set[K] = set()
        self._again: set[K] = set()
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._count = 0
        self._wake = asyncio.Event()
        self.failures: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._ready) + len(self._busy)

    @property
    def idle(self) -> bool:
        """Nothing ready and nothing in hand (there may be keys for later)."""
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
            self._wake.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Queue the key after a pause; the earliest of several pauses counts, a plain `add` wins."""
        at = self._clock.monotonic() + seconds
        if key in self._queued or self._due.get(key, at + 1) <= at:
            return
        self._due[key] = at
        self._count += 1
        heapq.heappush(self._later, (at, self._count, key))
        self._wake.set()

    def done(self, key: K) -> None:
        self._busy.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    async def get(self) -> K:
        """The next key, marked as being handled until `done`."""
        while True:
            self._promote()
            if self._ready:
                key = self._ready.popleft()
                self._queued.discard(key)
                self._busy.add(key)
                if self._ready:
                    self._wake.set()
                return key
            self._wake.clear()
            if not self._later:
                await self._wake.wait()
                continue
            pause = max(0.0, self._later[0][0] - self._clock.monotonic())
            await self._woken_or(pause)

    def _promote(self) -> None:
        now = self._clock.monotonic()
        while self._later and self._later[0][0] <= now:
            at, _, key = heapq.heappop(self._later)
            if self._due.get(key) == at:
                del self._due[key]
                self.add(key)

    async def _woken_or(self, seconds: float) -> None:
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        waking = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sleeping, waking):
                task.cancel()
            await asyncio.gather(sleeping, waking, return_exceptions=True)
