"""How soon an engine may be asked again: while much happens, its time belongs to those who start something. Pure."""

SHARE = 0.1
"""Of the time, for questions."""
FREE_SECONDS = 0.1
"""A few questions in a row are answered at once."""
WAIT_MOST = 2.0


class Thrift:
    def __init__(self) -> None:
        self._debt = 0.0
        self._at = 0.0

    def spend(self, seconds: float, now: float) -> None:
        """A question took so long; `now` it is answered."""
        self._debt = min(self._left(now) + seconds, FREE_SECONDS + WAIT_MOST * SHARE)
        self._at = now

    def wait(self, now: float) -> float:
        return max(0.0, self._left(now) - FREE_SECONDS) / SHARE

    def _left(self, now: float) -> float:
        return max(0.0, self._debt - SHARE * (now - self._at))
