"""A line in order of rank: who comes in order, as most do, is neither sorted in nor sorted out."""

import heapq
from collections import deque
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])


class Line(Generic[T]):
    """Like a heap, of things that compare; those who came in their order wait in a queue beside it."""

    def __init__(self) -> None:
        self._run: deque[T] = deque()
        self._heap: list[T] = []

    def __len__(self) -> int:
        return len(self._run) + len(self._heap)

    def push(self, item: T) -> None:
        run = self._run
        if not run or run[-1] <= item:
            run.append(item)
        else:
            heapq.heappush(self._heap, item)

    def first(self) -> T | None:
        """The lowest, which stays; None: nobody waits."""
        run, heap = self._run, self._heap
        if heap and (not run or heap[0] < run[0]):
            return heap[0]
        return run[0] if run else None

    def pop(self) -> T:
        """The lowest."""
        run, heap = self._run, self._heap
        if heap and (not run or heap[0] < run[0]):
            return heapq.heappop(heap)
        return run.popleft()

    def clear(self) -> None:
        self._run.clear()
        self._heap.clear()
