"""Delay: pauses that double from one attempt to the next, without chance."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Delay:
    """`first_seconds`, doubling up to `most_seconds`."""

    first_seconds: float
    most_seconds: float

    def after(self, failures: int) -> float:
        """Return the seconds to wait after this number of failures in a row (1 or more)."""
        exponent = min(max(failures, 1) - 1, 60)
        return min(self.first_seconds * 2.0**exponent, self.most_seconds)
