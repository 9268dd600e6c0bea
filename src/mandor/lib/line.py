"""A priority queue that is fast when most items arrive in order."""

import heapq
from collections import deque
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])


class Line(Generic[T]):
    """Like a heap; items that arrive in order wait in a plain queue beside it."""

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
        """Return the lowest item without removing it; None if the queue is empty."""
        run, heap = self._run, self._heap
        if heap and (not run or heap[0] < run[0]):
            return heap[0]
        return run[0] if run else None

    def pop(self) -> T:
        """Remove and return the lowest item."""
        run, heap = self._run, self._heap
        if heap and (not run or heap[0] < run[0]):
            return heapq.heappop(heap)
        return run.popleft()

    def clear(self) -> None:
        self._run.clear()
        self._heap.clear()
