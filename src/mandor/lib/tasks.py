"""Background tasks bound to a block."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


async def side_by_side(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results like `asyncio.gather`; a single coroutine needs no task."""
    return [await works[0]] if len(works) == 1 else await asyncio.gather(*works)


@contextmanager
def single_error() -> Iterator[None]:
    """Raise the error of a task instead of the group that contains nothing else."""
    try:
        yield
    except BaseExceptionGroup as group:
        found: BaseException = group
        while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
            found = found.exceptions[0]
        raise found from None


class Background:
    """Tasks that live as long as the block: an error in one ends the block, leaving it cancels them.

    Unlike a TaskGroup, leaving the block does not wait for tasks that run for ever.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(kind, error, trace)

    def start(self, work: Coroutine[Any, Any, Any], name: str | None = None) -> asyncio.Task[Any]:
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def wait(self) -> None:
        """Wait until every task has ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
