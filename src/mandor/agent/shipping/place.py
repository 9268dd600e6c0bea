"""How far the log of a unit was read: the time of the last line, and how many of that very time; pure."""

from msgspec import Struct


class Place(Struct, frozen=True, gc=False, omit_defaults=True):
    at: float = 0.0
    same: int = 0
    over: bool = False
    """It has ended, and was read to its end."""

    def after(self, at: float) -> "Place":
        """One line further."""
        return Place(at, self.same + 1 if at == self.at else 1)


class Resumed:
    """Leaves out what was read before, in a log that is read again from the time of a place on."""

    __slots__ = ("_at", "_left", "_passed")

    def __init__(self, place: Place) -> None:
        self._at, self._left = place.at, place.same
        self._passed = False

    def fresh(self, at: float) -> bool:
        """Behind the place everything is new, whatever the clock of its writer says."""
        if self._passed:
            return True
        if at < self._at:
            return False
        if at == self._at and self._left:
            self._left -= 1
            return False
        self._passed = True
        return True
