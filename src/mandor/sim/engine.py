"""The fake engine of a simulated node: units use resources by rule and survive a restart of the agent."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from mandor.engines.base import Launch, Observed, Unit, UnitPhase, Usage
from mandor.engines.fake import FakeEngine, MemoryState
from mandor.engines.fake.state import Record
from mandor.lib.clock import Clock
from mandor.model.resources import Resources
from mandor.sim.machine import UnitUsage, UsageCounter

START_SECONDS = 3.0
STOP_SECONDS = 2.0
OUT_OF_MEMORY = 137


Fate = Callable[[Unit, Launch], Mapping[str, Any]]
"""Returns the options of the fake engine that end a unit; empty: the unit runs until it is stopped."""


def no_fate(unit: Unit, launch: Launch) -> Mapping[str, Any]:
    return {}


class SimUnits(MemoryState):
    """Units of a node; calls `changed` on every change."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: Callable[[], None] = lambda: None

    def begin(self, record: Record) -> bool:
        self.changed()
        return super().begin(record)

    def put(self, record: Record) -> None:
        self.changed()
        super().put(record)

    def delete(self, unit: Unit) -> None:
        self.changed()
        super().delete(unit)


class SimEngine(FakeEngine):
    def __init__(
        self,
        clock: Clock,
        units: SimUnits,
        unit_usage: UnitUsage,
        *,
        images: bool,
        own_options: bool,
        fate: Fate = no_fate,
        changed: Callable[[], None] = lambda: None,
        exists: Callable[[str], bool] = os.path.exists,
    ) -> None:
        """
        `own_options`: the options of tasks are those of the fake engine and are applied.
        `changed`: called when the usage of units may have changed.
        `exists`: returns whether the machine has a path.
        """
        super().__init__(clock, state=units, images=images, exists=exists)
        self._unit_usage, self._own_options, self._fate, self._changed = unit_usage, own_options, fate, changed
        self._counters: dict[Unit, UsageCounter] = {}
        self._used = Resources()
        self._good_until = 0.0
        self._wants: dict[Unit, Resources] = {}
        self._seen: dict[Unit, tuple[Record, Observed, float]] = {}
        """Last observation of each unit, and the time until which it holds."""
        self._listed: tuple[Observed, ...] | None = None
        self._listed_until = 0.0
        self.slowness = 1.0
        """Factor for the time that starts and stops take."""
        units.changed = self._units_changed

    def _units_changed(self) -> None:
        self._good_until = 0.0
        self._listed = None
        self._changed()

    def look_again(self) -> None:
        """Recompute usage after usage rules have changed."""
        self._good_until = 0.0
        self._wants = {}
        self._changed()

    async def list(self) -> Sequence[Observed]:
        """Return the observed units; the same tuple while nothing changes."""
        await self._answer("list")
        return self._look(self._clock.monotonic())

    def _look(self, now: float) -> tuple[Observed, ...]:
        """Observe all units; unchanged units keep their object."""
        if self._listed is None or now >= self._listed_until:
            before, self._seen = self._seen, {}
            for record in self.state.all():
                known = before.get(record.unit)
                if known is None or known[0] is not record or now >= known[2]:
                    change = record.next_change(now)
                    known = record, record.observed(now), float("inf") if change is None else change
                self._seen[record.unit] = known
            self._listed = tuple(observed for _, observed, _ in self._seen.values())
            self._listed_until = min((until for *_, until in self._seen.values()), default=float("inf"))
            self._wants = {unit: wants for unit, wants in self._wants.items() if unit in self._seen}
        return self._listed

    def _next_change(self, since: float) -> float:
        if since < self._clock.monotonic():
            return super()._next_change(since)
        self._look(since)
        return self._listed_until

    async def start(self, unit: Unit, launch: Launch) -> None:
        times = {
            "start_delay": f"{START_SECONDS * self.slowness:g}s",
            "stop_delay": f"{STOP_SECONDS * self.slowness:g}s",
        }
        told = {name: value for name, value in launch.options.items() if self._own_options and name != "writes"}
        await super().start(unit, replace(launch, options={**times, **self._fate(unit, launch), **told}))

    def _running(self, now: float) -> Sequence[Record]:
        self._look(now)
        return [record for record, observed, _ in self._seen.values() if observed.phase is UnitPhase.RUNNING]

    def _want(self, record: Record) -> Resources:
        known = self._wants.get(record.unit)
        if known is None:
            known = self._wants[record.unit] = self._unit_usage(record.unit, record.launch)
        return known

    def used(self) -> tuple[Resources, float]:
        """Return the usage of all units and until when it holds; units above their memory limit are killed."""
        now = self._clock.monotonic()
        if now >= self._good_until:
            running = self._running(now)
            used, until = Resources(), self._listed_until
            for each in running:
                wants, limit = self._want(each), each.launch.memory_bytes
                if limit is not None and wants.memory_bytes > limit:
                    self.end(each.unit, OUT_OF_MEMORY, reason="OOMKilled", message="it used more memory than its limit")
                else:
                    used += wants
            self._used, self._good_until = used, until
        return self._used, self._good_until

    async def usage(self) -> Mapping[Unit, Usage]:
        await self._answer("usage")
        now, found = self._clock.monotonic(), {}
        for each in self._running(now):
            counter = self._counters.get(each.unit)
            if counter is None:
                counter = self._counters[each.unit] = UsageCounter(each.runs_at)
            found[each.unit] = counter.until(now, self._want(each))
        if len(self._counters) > len(found):
            self._counters = {unit: counter for unit, counter in self._counters.items() if unit in found}
        return found

    async def disk(self) -> Mapping[Unit, int]:
        await self._answer("disk")
        return {each.unit: self._want(each).disk_bytes for each in self.state.all()}
