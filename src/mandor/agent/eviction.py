"""Node-pressure eviction: reports when the node is short of a resource, removes unused images and evicts instances."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from mandor.agent.pressure import EvictionCandidate, Need, Pressure, Reading, Threshold, select_victims
from mandor.lib.clock import Clock

log = logging.getLogger(__name__)

IMAGES_MOST = 20
"""Largest number of images removed in one check."""
VICTIM_SECONDS = 30.0
"""Longest wait in seconds for an evicted instance to stop before the next one is evicted."""

Measure = Callable[[], Iterable[Reading]]


class Reclaimer(Protocol):
    """Frees memory and disk space of the node."""

    async def candidates(self, signal: str) -> list[EvictionCandidate]:
        """Return the running instances, with their use of the resource."""

    async def clean_image(self) -> str:
        """Remove one unused image that can be pulled again; return its name, or an empty string if there is none."""

    async def discard_ended(self) -> int:
        """Remove the units of instances that have ended; return their number."""

    def evict(self, uid: str, message: str, *, hard: bool) -> None: ...

    def alive(self, uid: str) -> bool: ...


class PressureEviction:
    def __init__(
        self,
        thresholds: Mapping[str, Threshold],
        measure: Measure,
        reclaimer: Reclaimer,
        clock: Clock,
        *,
        changed: Callable[[], None],
        look_seconds: float = 2.0,
        cleaned: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`changed`: called when `shown` has changed. `cleaned`: called with the name of each image that was removed.
        `look_seconds`: seconds between two measurements."""
        self._look_seconds, self._cleaned = look_seconds, cleaned
        self._pressure = Pressure(thresholds)
        self._measure, self._reclaimer, self._clock, self._changed = measure, reclaimer, clock, changed
        self._shown: tuple[str, ...] = ()
        self._victim = ""
        self._victim_since = 0.0

    @property
    def shown(self) -> tuple[str, ...]:
        """The resources that the node is short of."""
        return self._shown

    async def run(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep(self._look_seconds)

    async def look(self) -> None:
        self._read()
        if any(signal != "memory" for signal in self._pressure.short):
            await self._clean()
        need = self._pressure.need
        if need is None or self._victim_stopping():
            return
        if need.signal != "memory" and await self._reclaimer.discard_ended():
            self._read()
            need = self._pressure.need
        if need is not None:
            await self._evict(need)

    async def _clean(self) -> None:
        """Remove unused images, one after the other, until the disk is no longer short."""
        for _ in range(IMAGES_MOST):
            name = await self._reclaimer.clean_image()
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
            log.warning("cannot measure the machine: %s", error)
        if self._pressure.shown != self._shown:
            self._shown = self._pressure.shown
            log.warning("resources that the node is short of: %s", ", ".join(self._shown) or "none any more")
            self._changed()

    def _victim_stopping(self) -> bool:
        """Return whether an evicted instance is still stopping: what it frees may be enough."""
        if self._victim and self._reclaimer.alive(self._victim):
            return self._clock.monotonic() - self._victim_since < VICTIM_SECONDS
        self._victim = ""
        return False

    async def _evict(self, need: Need) -> None:
        missing = 0 if need.signal == "inodes" else need.missing  # the inodes of an instance are not counted
        victims = select_victims(await self._reclaimer.candidates(need.signal), missing)
        if not victims:
            log.warning("%s, and there is no instance to evict", need)
            return
        victim = victims[0]
        self._victim, self._victim_since = victim.uid, self._clock.monotonic()
        self._reclaimer.evict(victim.uid, f"the node is short of {need.signal}: {need}", hard=need.hard)
