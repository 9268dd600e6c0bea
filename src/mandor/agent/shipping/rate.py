"""How many lines an instance may send: a bucket that fills by the lines' own times, so catching up costs none; pure."""


class Bucket:
    """`rate` lines a second, twice as many at once."""

    __slots__ = ("_at", "_burst", "_left", "_rate", "left_out")

    def __init__(self, rate: int) -> None:
        self._rate, self._burst = rate, 2.0 * rate
        self._left, self._at = self._burst, 0.0
        self.left_out = 0
        """Since the last line that was taken."""

    def take(self, at: float) -> bool:
        """Whether a line of that time goes through; a clock that jumps back gives nothing."""
        if at > self._at:
            self._left = min(self._burst, self._left + (at - self._at) * self._rate)
            self._at = at
        if self._left < 1.0:
            self.left_out += 1
            return False
        self._left -= 1.0
        return True

    def confess(self) -> int:
        """How many were left out before this line; the count begins anew."""
        found, self.left_out = self.left_out, 0
        return found
