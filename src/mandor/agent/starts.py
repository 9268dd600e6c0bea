"""Limits on starting units: how many start at once, and whether a start may go on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from mandor.errors import Unavailable

T = TypeVar("T")


class ConcurrencyLimit:
    """Limits how many units start at the same time."""

    def __init__(self, most: int) -> None:
        self._slots = asyncio.Semaphore(most)
        self._wanted = 0
        self.idle = asyncio.Event()
        """Set while no start runs or waits for a slot."""
        self.idle.set()

    @asynccontextmanager
    async def take(self, seconds: float) -> AsyncIterator[None]:
        """Hold a slot for at most `seconds`; after that the block goes on without one."""
        self._wanted += 1
        self.idle.clear()
        with ExitStack() as slot:
            slot.callback(self._leave)
            await self._slots.acquire()
            slot.callback(self._slots.release)
            alarm = asyncio.get_running_loop().call_later(seconds, slot.close)
            slot.callback(alarm.cancel)
            yield

    def _leave(self) -> None:
        self._wanted -= 1
        if not self._wanted:
            self.idle.set()


class RevocableTask(Generic[T]):
    """A coroutine that checks before each of its steps whether it may go on.

    A timer is not enough: in a process that was frozen, the timer wakes no sooner than the coroutine.
    """

    def __init__(self, work: Coroutine[Any, Any, T], allowed: Callable[[], bool], reason: str) -> None:
        """`reason`: the message of `Unavailable` when `allowed` returns False."""
        self._work, self._allowed, self._reason = work, allowed, reason

    def __await__(self) -> Generator[Any, Any, T]:
        """Run the coroutine. Once `allowed` returns False, cancel it (it can still undo what it did) and raise
        `Unavailable`."""
        revoked = cancelled = False
        step: Callable[[], Any] = partial(self._work.send, None)
        while True:
            if not revoked and not self._allowed():
                revoked, step = True, partial(self._work.throw, asyncio.CancelledError())
            try:
                awaited = step()
            except StopIteration as end:
                result: T = end.value
                return result
            except asyncio.CancelledError:
                if revoked and not cancelled:
                    raise Unavailable(self._reason) from None
                raise
            try:
                yield awaited
                step = partial(self._work.send, None)
            except BaseException as error:
                cancelled, step = True, partial(self._work.throw, error)
