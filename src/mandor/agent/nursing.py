"""Keeps the probes of one instance going, and what they say about it."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, Protocol

from mandor.agent.order import Memory, Order
from mandor.agent.probes import Tally, keep_asking
from mandor.agent.seen import Opinion
from mandor.engines.base import Engine, Observed, Unit
from mandor.lib.clock import Clock
from mandor.model.instance import PortStatus
from mandor.model.task import Probe

log = logging.getLogger(__name__)

Kind = Literal["health", "readiness"]


class _Engines(Protocol):
    def engine(self, name: str) -> Engine: ...


class Nursing:
    def __init__(self, clock: Clock, changed: Callable[[], None]) -> None:
        self._clock, self._changed = clock, changed
        self._tallies: dict[tuple[Unit, Kind], Tally] = {}
        self._tasks: dict[tuple[Unit, Kind], asyncio.Task[None]] = {}

    @property
    def opinions(self) -> dict[Unit, Opinion]:
        units = {unit for unit, _ in self._tallies}
        return {unit: Opinion(self._good(unit, "health"), self._good(unit, "readiness")) for unit in units}

    def attend(
        self,
        order: Order,
        memory: Memory,
        running: Sequence[Observed],
        engines: _Engines,
        ports: Sequence[PortStatus] = (),
    ) -> None:
        """Probe exactly these units; a unit that is not among them any more is forgotten."""
        numbers = {each.name: each.port for each in ports}
        wanted = {
            (each.unit, kind): (each, probe)
            for each in running
            if order.template is not None and each.unit.task in order.template.tasks
            for kind, probe in _probes(order, each.unit.task)
        }
        for key in [key for key in self._tasks if key not in wanted]:
            self._tasks.pop(key).cancel()
            self._tallies.pop(key)
        for key, (observed, probe) in wanted.items():
            if key not in self._tasks:
                # Alive until shown otherwise; ready only once shown.
                tally = self._tallies[key] = Tally(probe, good=key[1] == "health")
                told = partial(self._told, order.name, key)
                engine = engines.engine(memory.engine)
                asking = keep_asking(probe, observed, engine, numbers, self._clock, tally, told)
                self._tasks[key] = asyncio.ensure_future(asking)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _good(self, unit: Unit, kind: Kind) -> bool:
        tally = self._tallies.get((unit, kind))
        return tally is None or tally.good

    def _told(self, name: str, key: tuple[Unit, Kind], wrong: str) -> None:
        unit, kind = key
        log.info("%s: the %s probe of task %s says %s", name, kind, unit.task, wrong or "yes")
        self._changed()


def _probes(order: Order, task: str) -> list[tuple[Kind, Probe]]:
    assert order.template is not None
    found = order.template.tasks[task]
    probes: list[tuple[Kind, Probe | None]] = [("health", found.health), ("readiness", found.readiness)]
    return [(kind, probe) for kind, probe in probes if probe is not None]
