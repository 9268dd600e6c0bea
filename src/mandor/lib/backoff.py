"""Growing pauses between tries."""

import random
from dataclasses import dataclass

from mandor.lib.delay import Delay


@dataclass(frozen=True, slots=True)
class Backoff:
    """`first`, doubling up to `most`; `jitter` spreads each pause by that share either way."""

    first_seconds: float
    most_seconds: float
    jitter: float = 0.0

    def pause(self, failures: int, *, chance: float | None = None) -> float:
        """How long to wait after the given number of failures in a row (1 or more)."""
        plain = Delay(self.first_seconds, self.most_seconds).after(failures)
        if not self.jitter:
            return plain
        roll = random.random() if chance is None else chance
        return plain * (1 + self.jitter * (2 * roll - 1))
