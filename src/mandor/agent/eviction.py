"""Defends the host: tells when it is short of something, takes away what is over, and ends instances if it must."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from mandor.agent.pressure import EvictionCandidate, Need, Pressure, Reading, Threshold, select_victim
from mandor.lib.clock import Clock

log = logging.getLogger(__name__)

IMAGES_MOST = 20
"""So many images are taken away at one look."""
PATIENCE_SECONDS = 30.0
"""So long the next one waits for the one before it to be gone."""

Measure = Callable[[], Iterable[Reading]]


class Reclaimer(Protocol):
    """Who lives on this node, for whoever has to choose between them."""

    async def tenants(self, signal: str) -> list[EvictionCandidate]:
        """Those that run, with what they use of it."""

    async def clean_image(self) -> str:
        """Take away one image that nothing uses and that can be fetched again; its name, empty: there is none."""

    async def discard_ended(self) -> int:
        """Take away what is left of instances that are over; how many units that were."""

    def evict(self, uid: str, message: str, *, hard: bool) -> None: ...

    def alive(self, uid: str) -> bool: ...


class PressureEviction:
    def __init__(
        self,
        thresholds: Mapping[str, Threshold],
        measure: Measure,
        tenants: Reclaimer,
        clock: Clock,
        *,
        changed: Callable[[], None],
        look_seconds: float = 2.0,
        cleaned: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`changed`: what the node is short of is something else now. `cleaned`: an image was taken away.
        `look_seconds`: seconds between two measurements."""
        self._look_seconds, self._cleaned = look_seconds, cleaned
        self._pressure = Pressure(thresholds)
        self._measure, self._tenants, self._clock, self._changed = measure, tenants, clock, changed
        self._told: tuple[str, ...] = ()
        self._going = ""
        self._going_since = 0.0

    @property
    def shown(self) -> tuple[str, ...]:
        return self._told

    async def run(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep(self._look_seconds)

    async def look(self) -> None:
        self._read()
        if any(signal != "memory" for signal in self._pressure.short):
            await self._clean()
        need = self._pressure.need
        if need is None or self._still_going():
            return
        if need.signal != "memory" and await self._tenants.discard_ended():
            self._read()
            need = self._pressure.need
        if need is not None:
            await self._evict(need)

    async def _clean(self) -> None:
        """Nobody misses an image that nothing uses: they go before anybody's patience ends, one after another."""
        for _ in range(IMAGES_MOST):
            name = await self._tenants.clean_image()
            if not name:
                return
            self._cleaned(name)
            self._read()
            if not any(signal != "memory" for signal in self._pressure.short):
                return

    def _read(self) -> None:
        try:
            self._pressure.update(self._measure(), self._clock.monotonic())
        except OSError as error:
            log.warning("the machine cannot be measured: %s", error)
        if self._pressure.shown != self._told:
            self._told = self._pressure.shown
            log.warning("the node is short of %s", ", ".join(self._told) or "nothing any more")
            self._changed()

    def _still_going(self) -> bool:
        """One at a time: what the last one gives back may be enough."""
        if self._going and self._tenants.alive(self._going):
            return self._clock.monotonic() - self._going_since < PATIENCE_SECONDS
        self._going = ""
        return False

    async def _evict(self, need: Need) -> None:
        victim = select_victim(await self._tenants.tenants(need.signal))
        if victim is None:
            log.warning("%s, and there is no instance that could go", need)
            return
        self._going, self._going_since = victim.uid, self._clock.monotonic()
        self._tenants.evict(victim.uid, f"the node is short of {need.signal}: {need}", hard=need.hard)
