"""Who is at work: told before each call of a plugin, so that time can be measured and a loop broken off."""

from typing import Protocol


class Overrun(BaseException):
    """Thrown into a plugin that has used up its budget; no `Exception`, so that none catches it by accident."""


class Watch(Protocol):
    def begin(self, plugin: str) -> None:
        """This plugin is called now; the one before has returned."""

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

    def begin(self, plugin: str) -> None:
        self.current = plugin

    def end(self) -> None:
        pass
