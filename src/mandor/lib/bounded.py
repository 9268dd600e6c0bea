"""A timeout that costs no timer if the work does not suspend."""

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


async def bounded(seconds: float, work: Awaitable[T]) -> T:
    """Await the work with a timeout, which starts when the work first suspends."""
    steps = work.__await__()
    try:
        waits = steps.send(None)
    except StopIteration as end:
        found: T = end.value
        return found
    async with asyncio.timeout(seconds):
        return await _Rest(steps, waits)


class _Rest(Generic[T]):
    def __init__(self, steps: Generator[Any, Any, T], waits: Any) -> None:
        """`waits` is the future that the work currently waits for."""
        self._steps, self._waits = steps, waits

    def __await__(self) -> Generator[Any, Any, T]:
        steps, waits = self._steps, self._waits
        while True:
            error: BaseException | None = None
            try:
                yield waits
            except BaseException as thrown:
                error = thrown
            try:
                waits = steps.send(None) if error is None else steps.throw(error)
            except StopIteration as end:
                found: T = end.value
                return found
