"""Growing delays between retries."""

import random
from dataclasses import dataclass

from mandor.lib.delay import Delay


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays from `first_seconds`, doubling up to `most_seconds`; `jitter` varies each by that share."""

    first_seconds: float
    most_seconds: float
    jitter: float = 0.0

    def pause(self, failures: int, *, chance: float | None = None) -> float:
        """Return the delay in seconds after this number of consecutive failures (1 or more)."""
        plain = Delay(self.first_seconds, self.most_seconds).after(failures)
        if not self.jitter:
            return plain
        roll = random.random() if chance is None else chance
        return plain * (1 + self.jitter * (2 * roll - 1))
