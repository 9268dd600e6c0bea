"""Observers of plugin calls, which measure their time and interrupt calls that take too long."""

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, TypeVar

T = TypeVar("T")


class Overrun(BaseException):
    """Raised in a plugin that exceeded its time limit. A BaseException, so that plugins do not catch it by accident."""


class Watch(Protocol):
    """Observer of plugin calls."""

    def begin(self, plugin: str, point: str) -> None:
        """Record the start of a call; the previous call has returned."""

    def end(self) -> None:
        """Record the end of the last call."""

    @property
    def current(self) -> str:
        """The plugin that was called last."""


class Unwatched:
    """A watch that records the current plugin and measures nothing."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current = ""

    def begin(self, plugin: str, point: str) -> None:
        self.current = plugin

    def end(self) -> None:
        pass


class Guard(Watch, Protocol):
    """A watch that interrupts calls that take too long, within its `with` block and within `run`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(self, work: Callable[[], T]) -> T:
        """Run some work with a time limit; may raise `Overrun`."""

    @property
    def last(self) -> str:
        """The plugin that was called last, also after the call ended."""


class Unguarded(Unwatched):
    """A guard that interrupts nothing."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def run(self, work: Callable[[], T]) -> T:
        return work()

    @property
    def last(self) -> str:
        return self.current
