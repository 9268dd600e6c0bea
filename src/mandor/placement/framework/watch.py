"""Who is at work: told before each call of a plugin, so that time can be measured and a loop broken off."""

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, TypeVar

T = TypeVar("T")


class Overrun(BaseException):
    """Thrown into a plugin that has used up its budget; no `Exception`, so that none catches it by accident."""


class Watch(Protocol):
    def begin(self, plugin: str, point: str) -> None:
        """This plugin is called now, at this point; the one before has returned."""

    def end(self) -> None:
        """The last one has returned."""

    @property
    def current(self) -> str:
        """The plugin that was called last."""


class Unwatched:
    """Knows who is at work, and measures nothing."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current = ""

    def begin(self, plugin: str, point: str) -> None:
        self.current = plugin

    def end(self) -> None:
        pass


class Guard(Watch, Protocol):
    """A watch that breaks off what takes too long, while it is entered and in what is run through it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(self, work: Callable[[], T]) -> T:
        """The work, watched; an `Overrun` may come out of it."""

    @property
    def last(self) -> str:
        """The plugin that was called last, also after its end."""


class Unguarded(Unwatched):
    """Breaks nothing off."""

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
