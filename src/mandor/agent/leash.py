"""Work of several steps that is asked before each of them whether it may go on."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Generic, TypeVar

from mandor.errors import Unavailable

T = TypeVar("T")


class Leash(Generic[T]):
    """For a process that may be frozen: whoever looks after its work wakes no sooner than the work does."""

    def __init__(self, work: Coroutine[Any, Any, T], may: Callable[[], bool], why: str) -> None:
        """`why`: what is said when it may not go on."""
        self._work, self._may, self._why = work, may, why

    def __await__(self) -> Generator[Any, Any, T]:
        """When it may not go on, it is cancelled, once: it can still take back what it did. Then `Unavailable`."""
        pulled = told = False
        step: Callable[[], Any] = partial(self._work.send, None)
        while True:
            if not pulled and not self._may():
                pulled, step = True, partial(self._work.throw, asyncio.CancelledError())
            try:
                waits = step()
            except StopIteration as end:
                found: T = end.value
                return found
            except asyncio.CancelledError:
                if pulled and not told:
                    raise Unavailable(self._why) from None
                raise
            try:
                yield waits
                step = partial(self._work.send, None)
            except BaseException as error:
                told, step = True, partial(self._work.throw, error)
