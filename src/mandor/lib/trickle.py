"""Trickle: what may wait goes on a few at a time, so that one pass of the event loop never belongs to it alone."""

import asyncio
from collections import deque
from collections.abc import Callable

Wake = Callable[[], None]


class Trickle:
    """In the order of arrival, so many in each pass of the loop. A loop that has nothing else to do turns at once, so
    nobody waits for long; one in which somebody computes turns seldom, and most of its time is theirs."""

    def __init__(self, each_pass: int | Callable[[], int]) -> None:
        """A number may depend on the moment."""
        self._each_pass = each_pass
        self._waiting: deque[Wake] = deque()
        self._turning = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, wake: Wake) -> None:
        """Call it when its turn has come; whatever it raises, the others have theirs."""
        self._waiting.append(wake)
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    async def turn(self) -> None:
        """Wait for one's turn."""
        waiter = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        self.add(wake)
        await waiter

    def _turn(self) -> None:
        waiting = self._waiting
        most = self._each_pass if isinstance(self._each_pass, int) else self._each_pass()
        try:
            for _ in range(min(most, len(waiting))):
                waiting.popleft()()
        finally:
            self._turning = bool(waiting)
            if waiting:
                asyncio.get_running_loop().call_soon(self._turn)
