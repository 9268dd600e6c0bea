"""What the units of a simulated machine use: measured as a real agent does, and not again while nothing changes."""

from collections.abc import Callable, Iterable, Mapping, Set

from mandor.agent.usage import InstanceMeter
from mandor.engines.base import Engine
from mandor.lib.clock import Clock
from mandor.model.usage import InstanceUsage


class SteadyMeter(InstanceMeter):
    """`state`: what all units use together; the very same object: each of them uses what it did."""

    def __init__(self, clock: Clock, state: Callable[[], object]) -> None:
        super().__init__(clock)
        self._state_now = state
        self._state: object = None
        self._steady: tuple[Mapping[str, str], Set[str], dict[str, InstanceUsage]] | None = None

    async def read(
        self, engines: Iterable[Engine], names: Mapping[str, str], ready: Set[str] = frozenset()
    ) -> dict[str, InstanceUsage]:
        before, self._state = self._state, self._state_now()
        if self._state is not before:
            self._steady = None
            return await super().read(engines, names, ready)
        # Rates tell of the time since the last measure: with two of one state between them, they stay as they are.
        if self._steady is None or self._steady[0] is not names or self._steady[1] is not ready:
            self._steady = names, ready, await super().read(engines, names, ready)
        return self._steady[2]

    def known(self, names: Mapping[str, str], ready: Set[str]) -> dict[str, InstanceUsage] | None:
        steady = self._steady
        if steady is None or steady[0] is not names or steady[1] is not ready or self._state_now() is not self._state:
            return None
        return steady[2]
