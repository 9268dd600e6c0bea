"""Converts the CRI status of a container to an `Observed`: pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mandor.engines.base import Observed, Unit, UnitPhase
from mandor.engines.containers.ending import reason_of
from mandor.engines.cri.wire import EXITED, RUNNING

NANO = 1e9
_START_ERRORS = {"StartError", "ContainerCannotRun", "CreateContainerError"}


def observe(unit: Unit, status: Any, address: str = "") -> Observed | None:
    """Return the state of a unit; None: its container was created and not started."""
    if status.state == RUNNING:
        return Observed(unit=unit, phase=UnitPhase.RUNNING, started_at=status.started_at / NANO, address=address)
    if status.state != EXITED:
        return None
    times = {"started_at": max(0, status.started_at) / NANO, "finished_at": max(0, status.finished_at) / NANO}
    if status.reason == "Unknown":
        words = "it ended while the runtime was down; the exit code is not known"
        return Observed(unit=unit, phase=UnitPhase.EXITED, reason="Vanished", message=words, **times)
    failed = status.reason in _START_ERRORS
    out_of_memory = status.reason == "OOMKilled"
    return Observed(
        unit=unit,
        phase=UnitPhase.EXITED,
        exit_code=None if failed else status.exit_code,
        reason="StartFailed" if failed else reason_of(status.exit_code, out_of_memory=out_of_memory),
        message=status.message,
        **times,
    )


def interrupted(status: Any) -> bool:
    """Return whether the start was cancelled because the client disconnected: the container counts as not started."""
    return status.state == EXITED and status.reason in _START_ERRORS and "context canceled" in status.message


def process_of(info: Mapping[str, str]) -> int | None:
    """Return the process id of the container's first process, from the verbose status; None: it is not there."""
    for text in (info.get("info", ""), info.get("pid", "")):
        try:
            found = json.loads(text)
        except ValueError:
            continue
        number = found.get("pid") if isinstance(found, dict) else found
        if isinstance(number, int) and number > 1:
            return number
    return None


def working_dir_of(info: Mapping[str, str]) -> str:
    """Return the working directory of the image."""
    try:
        found = json.loads(info.get("info", ""))
    except ValueError:
        return "/"
    spec = found.get("imageSpec") if isinstance(found, dict) else None
    config = spec.get("config") if isinstance(spec, dict) else None
    return str((config or {}).get("WorkingDir") or "/")
