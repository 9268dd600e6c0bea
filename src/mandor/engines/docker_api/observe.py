"""Converts an inspected container to an `Observed`: pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mandor.engines.base import Observed, Unit, UnitPhase
from mandor.engines.containers.ending import reason_of
from mandor.engines.containers.labels import DIGEST
from mandor.engines.docker_api.frames import parse_time

RUNNING = {"running", "paused", "restarting", "stopping"}
OVER = {"exited", "dead", "stopped"}


def observe(unit: Unit, inspected: Mapping[str, Any]) -> Observed | None:
    """Return the state of a unit; None: its container was created and not started, or is being removed."""
    state = inspected["State"]
    status = state.get("Status", "")
    if status in RUNNING:
        return Observed(
            unit=unit,
            phase=UnitPhase.RUNNING,
            started_at=parse_time(state.get("StartedAt", "")),
            address=address_of(inspected),
            digest=((inspected.get("Config") or {}).get("Labels") or {}).get(DIGEST, ""),
        )
    if status not in OVER:
        return None
    code, killed = int(state.get("ExitCode", 0)), bool(state.get("OOMKilled"))
    return Observed(
        unit=unit,
        phase=UnitPhase.EXITED,
        exit_code=code,
        reason=reason_of(code, out_of_memory=killed),
        message=state.get("Error", "") or ("" if status != "dead" else "the engine could not take it away"),
        started_at=parse_time(state.get("StartedAt", "")),
        finished_at=parse_time(state.get("FinishedAt", "")),
    )


def address_of(inspected: Mapping[str, Any]) -> str:
    """Return the first address of a container; empty: it uses the network of the node."""
    settings = inspected.get("NetworkSettings") or {}
    networks = (settings.get("Networks") or {}).values()
    found = [settings, *networks]
    addresses = [each.get(key, "") for key in ("IPAddress", "GlobalIPv6Address") for each in found if each]
    return next((address for address in addresses if address), "")
