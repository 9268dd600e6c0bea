"""The queue interface between the server that stores a VM request and the worker that processes it.

* A queue carries names. The state of a request is in the store alone, so a name that is delivered twice does no harm.
* `publish` returns when the queue has accepted the names durably, and raises `Unavailable` otherwise.
* Every delivery is answered once, with `done`, `retry` or `fail`; one without an answer is delivered again.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self


class Delivery(ABC):
    """One request, delivered to one worker."""

    def __init__(self, request: str) -> None:
        self.request = request
        """`NAMESPACE/NAME`"""

    @abstractmethod
    async def done(self) -> None:
        """Remove it from the queue."""

    @abstractmethod
    async def retry(self, attempt: int, seconds: float) -> None:
        """Deliver it again after that time; `attempt`: number of failed attempts."""

    @abstractmethod
    async def fail(self, why: str) -> None:
        """Remove it after its final failure; some queues keep it in a dead-letter queue."""


class VmRequestQueue(ABC):
    """Use as an async context manager: connecting may continue in the background after the block begins."""

    @abstractmethod
    async def publish(self, *requests: str) -> None:
        """Publish all; if this fails, some may have been published."""

    @abstractmethod
    def deliveries(self) -> AsyncIterator[Delivery]:
        """Yield deliveries until closed; several may be unanswered at the same time."""

    @property
    def trouble(self) -> str:
        """Reason why the queue is not working; empty: it works."""
        return ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None
