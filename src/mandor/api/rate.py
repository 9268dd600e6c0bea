"""How often one identity may do something: a bucket each, forgotten when it is full again."""

from mandor.errors import TooMany
from mandor.lib.clock import Clock

IDENTITIES_MOST = 20_000


class Rates:
    def __init__(
        self, clock: Clock, per_second: float, burst: int, says: str = "writes more than {:g} objects"
    ) -> None:
        """`says`: what whoever does it too often does."""
        self._clock = clock
        self._per_second = per_second
        self._burst = float(burst)
        self._says = says.format(per_second)
        self._used: dict[str, tuple[float, float]] = {}
        """By identity: how much of the burst was used, and when."""

    def spend(self, identity: str, count: int) -> None:
        """Raise `TooMany` if so many at once are too many for now."""
        now = self._clock.monotonic()
        used, at = self._used.get(identity, (0.0, now))
        used = max(0.0, used - (now - at) * self._per_second)
        if used + count > self._burst:
            raise TooMany(
                f"{identity} {self._says} a second",
                hint="slow down and try again",
                seconds=round((used + count - self._burst) / self._per_second, 1),
            )
        self._used[identity] = (used + count, now)
        if len(self._used) > IDENTITIES_MOST:
            self._forget(now)

    def _forget(self, now: float) -> None:
        full = [each for each, (used, at) in self._used.items() if used <= (now - at) * self._per_second]
        for each in full or list(self._used)[: IDENTITIES_MOST // 2]:
            del self._used[each]
