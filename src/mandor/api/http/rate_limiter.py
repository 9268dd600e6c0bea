"""RateLimiter: a token bucket per identity; a bucket that is full again is deleted."""

from mandor.errors import TooMany
from mandor.lib.clock import Clock

IDENTITIES_MOST = 20_000  # buckets


class RateLimiter:
    def __init__(
        self, clock: Clock, per_second: float, burst: int, action: str = "writes more than {:g} objects"
    ) -> None:
        """`action`: verb phrase of the error message; `{}` stands for the limit per second."""
        self._clock = clock
        self._per_second = per_second
        self._burst = float(burst)
        self._action = action.format(per_second)
        self._used: dict[str, tuple[float, float]] = {}
        """By identity: the used part of the burst, and the time of the last use."""

    def spend(self, identity: str, count: int) -> None:
        """Take `count` tokens from the bucket of an identity; raise `TooMany` if it holds fewer."""
        now = self._clock.monotonic()
        used, at = self._used.get(identity, (0.0, now))
        used = max(0.0, used - (now - at) * self._per_second)
        if used + count > self._burst:
            raise TooMany(
                f"{identity} {self._action} a second",
                hint="slow down and try again",
                seconds=round((used + count - self._burst) / self._per_second, 1),
            )
        self._used[identity] = (used + count, now)
        if len(self._used) > IDENTITIES_MOST:
            self._delete_full(now)

    def _delete_full(self, now: float) -> None:
        full = [each for each, (used, at) in self._used.items() if used <= (now - at) * self._per_second]
        for each in full or list(self._used)[: IDENTITIES_MOST // 2]:
            del self._used[each]
