"""Converts the state of an Incus instance and of its command to an `Observed`: pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from mandor.engines.base import LogLine, Observed, Unit, UnitPhase, Usage
from mandor.engines.containers.ending import reason_of
from mandor.engines.incus.folder import Ending

NANO = 1e9


def machine_stopped(unit: Unit, started: float) -> Observed:
    return _over(unit, started, exit_code=0, reason="Completed", message="the machine has stopped")


def vanished(unit: Unit, started: float) -> Observed:
    return _over(unit, started, reason="Vanished", message="its container stopped under it")


def command_ended(unit: Unit, started: float, ending: Ending, *, out_of_memory: bool) -> Observed:
    if ending.code is None:
        return _over(unit, started, ending.at, reason="StartFailed", message=ending.message)
    reason = reason_of(ending.code, out_of_memory=out_of_memory)
    return _over(unit, started, ending.at, exit_code=ending.code, reason=reason)


def _over(unit: Unit, started: float, finished: float | None = None, **facts: Any) -> Observed:
    at = time.time() if finished is None else finished
    return Observed(unit=unit, phase=UnitPhase.EXITED, started_at=started, finished_at=at, **facts)


def console_lines(content: bytes, at: float, tail: int | None) -> Sequence[LogLine]:
    """Return the console output of a machine as log lines; Incus records no times for it."""
    lines = [LogLine(at, "stdout", line.rstrip(b"\r")) for line in content.splitlines()]
    return lines if tail is None else lines[max(0, len(lines) - tail) :]


def address_of(state: Mapping[str, Any]) -> str:
    for name, interface in sorted((state.get("network") or {}).items()):
        for each in interface.get("addresses") or () if name != "lo" else ():
            if each.get("scope") == "global":
                return str(each["address"])
    return ""


def usage_of(state: Mapping[str, Any]) -> Usage:
    networks = [each.get("counters") or {} for name, each in (state.get("network") or {}).items() if name != "lo"]
    return Usage(
        cpu_seconds=int((state.get("cpu") or {}).get("usage", 0)) / NANO,
        memory_bytes=int((state.get("memory") or {}).get("usage", 0)),
        network_in_bytes=sum(int(each.get("bytes_received", 0)) for each in networks),
        network_out_bytes=sum(int(each.get("bytes_sent", 0)) for each in networks),
    )
