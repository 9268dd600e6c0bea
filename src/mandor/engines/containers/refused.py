"""The engine answered, and said no."""

from __future__ import annotations

from mandor.engines.containers.trouble import passing


class Refused(Exception):
    """Each engine's client has its own, which knows its codes."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def unknown(self) -> bool:
        """There is no such thing."""
        return False

    @property
    def passing(self) -> bool:
        """The same may be granted later."""
        return passing(self.message)
