"""Measures the usage of the machine and its instances: CPU, memory, disk, network."""

import logging
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

import psutil

from mandor.engines.base import Engine, Unit, Usage
from mandor.lib.bounded import bounded
from mandor.lib.clock import Clock
from mandor.model.usage import InstanceUsage, NodeUsage

log = logging.getLogger(__name__)

USAGE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    busy: float
    received: int
    sent: int


class Meter:
    """Reads the machine's counters; rates are calculated between two readings."""

    def __init__(self, clock: Clock, data: Path) -> None:
        self._clock, self._data = clock, data
        self._last = self._sample()

    def read(self) -> NodeUsage:
        now, last = self._sample(), self._last
        self._last = now
        passed = now.at - last.at
        memory = psutil.virtual_memory()
        return NodeUsage(
            cpu_milli=_rate(1000 * (now.busy - last.busy), passed),
            memory_bytes=memory.total - memory.available,
            disk_bytes=psutil.disk_usage(str(self._data)).used,
            network_in_bytes=_rate(now.received - last.received, passed),
            network_out_bytes=_rate(now.sent - last.sent, passed),
        )

    def _sample(self) -> _Sample:
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        # User time includes guest time.
        guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        network = _network()
        return _Sample(self._clock.monotonic(), sum(times) - idle - guest, *network)


class InstanceMeter:
    """Reads the usage of units from the engines and adds it up by instance."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[Unit, tuple[float, float]] = {}

    async def read(
        self, engines: Iterable[Engine], names: Mapping[str, str], ready: Set[str] = frozenset()
    ) -> dict[str, InstanceUsage]:
        """Return the usage by name. `names`: name by uid; others are skipped. `ready`: uids of ready instances."""
        found: dict[str, InstanceUsage] = {}
        last, self._last = self._last, {}
        for engine in engines:
            for unit, usage in (await read_usage(engine)).items():
                name = names.get(unit.uid)
                if name is not None:
                    one = self._measured(unit, usage, last.get(unit), warming=unit.uid not in ready)
                    others = found.get(name)
                    found[name] = one if others is None else _together(others, one)
        return found

    def _measured(self, unit: Unit, usage: Usage, last: tuple[float, float] | None, *, warming: bool) -> InstanceUsage:
        now = self._clock.monotonic()
        self._last[unit] = (now, usage.cpu_seconds)
        if last is None:
            return InstanceUsage(memory_bytes=usage.memory_bytes, warming=True)
        used = _rate(1000 * (usage.cpu_seconds - last[1]), now - last[0])
        return InstanceUsage(cpu_milli=used, memory_bytes=usage.memory_bytes, warming=warming)


def _together(one: InstanceUsage, other: InstanceUsage) -> InstanceUsage:
    return InstanceUsage(
        cpu_milli=one.cpu_milli + other.cpu_milli,
        memory_bytes=one.memory_bytes + other.memory_bytes,
        warming=one.warming or other.warming,
    )


async def read_usage(engine: Engine) -> Mapping[Unit, Usage]:
    """Return the usage of the engine's units; empty if the engine fails or is slow, so that heartbeats go out."""
    try:
        return await bounded(USAGE_SECONDS, engine.usage())
    except Exception as error:
        log.debug("engine %s cannot report the usage of its units: %s", engine.name, str(error) or type(error).__name__)
        return {}


def _network() -> tuple[int, int]:
    """Return the bytes received and sent by all interfaces except loopback."""
    found = psutil.net_io_counters(pernic=True)
    real = [counters for name, counters in found.items() if name != "lo"]
    return sum(each.bytes_recv for each in real), sum(each.bytes_sent for each in real)


def _rate(amount: float, seconds: float) -> int:
    # A counter that was reset, or a clock that stands still, counts as no usage.
    return round(amount / seconds) if seconds > 0 and amount > 0 else 0
