"""Runs the probes of one instance and keeps their results."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from mandor.agent.order import Memory, Order
from mandor.agent.probes import ProbeCounter, RunProbe, StartupCounter, run_probe_loop
from mandor.agent.sync_inputs import ProbeResult
from mandor.engines.base import Engine, Observed, Unit
from mandor.lib.clock import Clock
from mandor.model.instance import PortStatus
from mandor.model.task import Probe, ProbeKind, Task

log = logging.getLogger(__name__)


class _Engines(Protocol):
    def engine(self, name: str) -> Engine: ...


class ProbeRunner:
    """Runs the probes of the units of one instance."""

    def __init__(self, clock: Clock, changed: Callable[[], None], run_probe: RunProbe) -> None:
        self._clock, self._changed, self._run_probe = clock, changed, run_probe
        self._counters: dict[tuple[Unit, ProbeKind], ProbeCounter] = {}
        self._tasks: dict[tuple[Unit, ProbeKind], asyncio.Task[None]] = {}
        self._started: set[Unit] = set()
        """Units whose startup probe has passed."""

    @property
    def probe_results(self) -> dict[Unit, ProbeResult]:
        units = {unit for unit, _ in self._counters} | self._started
        return {unit: self._result(unit) for unit in units}

    def sync(
        self,
        order: Order,
        memory: Memory,
        running: Sequence[Observed],
        engines: _Engines,
        ports: Sequence[PortStatus] = (),
    ) -> None:
        """Probe exactly the given units; the results of other units are dropped."""
        numbers = {each.name: each.port for each in ports}
        self._started &= {each.unit for each in running}
        wanted = {
            (each.unit, kind): (each, probe)
            for each in running
            if order.template is not None and each.unit.task in order.template.tasks
            for kind, probe in self._due(each.unit, order.template.tasks[each.unit.task]).items()
        }
        for key in [key for key in self._tasks if key not in wanted]:
            self._tasks.pop(key).cancel()
            self._counters.pop(key)
        for key, (observed, probe) in wanted.items():
            if key not in self._tasks:
                counter = self._counters[key] = _first(key[1], probe)
                changed = partial(self._changed_result, order.name, key)
                engine = engines.engine(memory.engine)
                asking = run_probe_loop(
                    probe, observed, engine, numbers, self._clock, counter, changed, self._run_probe
                )
                self._tasks[key] = asyncio.ensure_future(asking)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _due(self, unit: Unit, task: Task) -> dict[ProbeKind, Probe]:
        """Return the probes to run now: only the startup probe until it has passed, then the others."""
        probes = task.probes
        starting = "startup" in probes and unit not in self._started
        return {kind: probe for kind, probe in probes.items() if (kind == "startup") == starting}

    def _result(self, unit: Unit) -> ProbeResult:
        startup = self._counters.get((unit, "startup"))
        if startup is not None and unit not in self._started:
            return ProbeResult(alive=startup.good, ready=False, started=False)
        return ProbeResult(self._good(unit, "health"), self._good(unit, "readiness"))

    def _good(self, unit: Unit, kind: ProbeKind) -> bool:
        counter = self._counters.get((unit, kind))
        return counter is None or counter.good

    def _changed_result(self, name: str, key: tuple[Unit, ProbeKind], wrong: str) -> None:
        unit, kind = key
        log.info(
            "instance %s: the %s probe of task %s %s", name, kind, unit.task, f"failed: {wrong}" if wrong else "passed"
        )
        if kind == "startup" and not wrong:
            self._started.add(unit)
        self._changed()


def _first(kind: ProbeKind, probe: Probe) -> ProbeCounter:
    """Return the counter of a new probe: alive until it fails, ready only once it has passed."""
    return StartupCounter(probe, good=True) if kind == "startup" else ProbeCounter(probe, good=kind == "health")
