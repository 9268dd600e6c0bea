"""PacedQueue: runs callbacks a few per pass of the event loop, so that they never block a whole pass."""

import asyncio
from collections import deque
from collections.abc import Callable

Wake = Callable[[], None]


class PacedQueue:
    """Runs callbacks in order of arrival, a limited number in each pass of the event loop.

    An idle loop passes at once, so callbacks do not wait long; a busy loop passes seldom and keeps most of its time.
    """

    def __init__(self, each_pass: int | Callable[[], int]) -> None:
        """`each_pass` is the number of callbacks per pass, or a function that returns it."""
        self._each_pass = each_pass
        self._waiting: deque[Wake] = deque()
        self._turning = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, wake: Wake) -> None:
        """Add a callback; an error in one does not keep the others from running."""
        self._waiting.append(wake)
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    async def turn(self) -> None:
        """Wait until the caller's turn has come."""
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
