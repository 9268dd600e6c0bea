"""The queue interface: how a task gets from whoever stored it to whoever works on it.

* A queue carries names. What is true of a task stands in the store alone, so a name that comes twice does no harm.
* `publish` returns when the queue has them for good (or as good as the queue can), and raises `Unavailable` otherwise.
* Every delivery is answered once, with `done`, `again` or `bury`; one that is not (its taker died) comes again.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self


class Delivery(ABC):
    """One task, handed to one worker."""

    def __init__(self, task: str) -> None:
        self.task = task
        """`NAMESPACE/NAME`"""

    @abstractmethod
    async def done(self) -> None:
        """Nothing more is to be done about it."""

    @abstractmethod
    async def again(self, attempt: int, seconds: float) -> None:
        """It comes again after that time; `attempt`: so many tries have failed."""

    @abstractmethod
    async def bury(self, why: str) -> None:
        """It has failed for good; queues that can keep it for people to look at."""


class TaskQueue(ABC):
    """Use as `async with`: the block begins when the queue is ready, or is being tried for in the background."""

    @abstractmethod
    async def publish(self, *tasks: str) -> None:
        """All of them; if it fails, some may be on their way all the same."""

    @abstractmethod
    def deliveries(self) -> AsyncIterator[Delivery]:
        """For ever; several may be in hand at the same time."""

    @property
    def trouble(self) -> str:
        """Why it does not work just now; empty: it does."""
        return ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
