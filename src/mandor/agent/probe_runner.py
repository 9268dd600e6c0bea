"""Keeps the probes of one instance going, and what they say about it."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from mandor.agent.order import Memory, Order
from mandor.agent.probes import Ask, Beginning, Tally, keep_asking
from mandor.agent.sync_inputs import ProbeResult
from mandor.engines.base import Engine, Observed, Unit
from mandor.lib.clock import Clock
from mandor.model.instance import PortStatus
from mandor.model.task import Probe, ProbeKind, Task

log = logging.getLogger(__name__)


class _Engines(Protocol):
    def engine(self, name: str) -> Engine: ...


class ProbeRunner:
    def __init__(self, clock: Clock, changed: Callable[[], None], ask: Ask) -> None:
        self._clock, self._changed, self._ask = clock, changed, ask
        self._tallies: dict[tuple[Unit, ProbeKind], Tally] = {}
        self._tasks: dict[tuple[Unit, ProbeKind], asyncio.Task[None]] = {}
        self._begun: set[Unit] = set()
        """Whose startup probe was good."""

    @property
    def probe_results(self) -> dict[Unit, ProbeResult]:
        units = {unit for unit, _ in self._tallies} | self._begun
        return {unit: self._result(unit) for unit in units}

    def sync(
        self,
        order: Order,
        memory: Memory,
        running: Sequence[Observed],
        engines: _Engines,
        ports: Sequence[PortStatus] = (),
    ) -> None:
        """Probe exactly these units; a unit that is not among them any more is forgotten."""
        numbers = {each.name: each.port for each in ports}
        self._begun &= {each.unit for each in running}
        wanted = {
            (each.unit, kind): (each, probe)
            for each in running
            if order.template is not None and each.unit.task in order.template.tasks
            for kind, probe in self._due(each.unit, order.template.tasks[each.unit.task]).items()
        }
        for key in [key for key in self._tasks if key not in wanted]:
            self._tasks.pop(key).cancel()
            self._tallies.pop(key)
        for key, (observed, probe) in wanted.items():
            if key not in self._tasks:
                tally = self._tallies[key] = _first(key[1], probe)
                told = partial(self._told, order.name, key)
                engine = engines.engine(memory.engine)
                asking = keep_asking(probe, observed, engine, numbers, self._clock, tally, told, self._ask)
                self._tasks[key] = asyncio.ensure_future(asking)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _due(self, unit: Unit, task: Task) -> dict[ProbeKind, Probe]:
        """Until it has started, it is asked nothing else."""
        probes = task.probes
        starting = "startup" in probes and unit not in self._begun
        return {kind: probe for kind, probe in probes.items() if (kind == "startup") == starting}

    def _result(self, unit: Unit) -> ProbeResult:
        startup = self._tallies.get((unit, "startup"))
        if startup is not None and unit not in self._begun:
            return ProbeResult(alive=startup.good, ready=False)
        return ProbeResult(self._good(unit, "health"), self._good(unit, "readiness"))

    def _good(self, unit: Unit, kind: ProbeKind) -> bool:
        tally = self._tallies.get((unit, kind))
        return tally is None or tally.good

    def _told(self, name: str, key: tuple[Unit, ProbeKind], wrong: str) -> None:
        unit, kind = key
        log.info("%s: the %s probe of task %s says %s", name, kind, unit.task, wrong or "yes")
        if kind == "startup" and not wrong:
            self._begun.add(unit)
        self._changed()


def _first(kind: ProbeKind, probe: Probe) -> Tally:
    """Alive until shown otherwise; ready only once shown."""
    return Beginning(probe, good=True) if kind == "startup" else Tally(probe, good=kind == "health")
