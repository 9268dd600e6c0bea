"""Refused: an error that the engine answered with."""

from __future__ import annotations

from mandor.engines.containers.error_messages import passing


class Refused(Exception):
    """Each client has a subclass with the error codes of its engine."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def unknown(self) -> bool:
        """The object does not exist."""
        return False

    @property
    def passing(self) -> bool:
        """The same request may succeed later."""
        return passing(self.message)
