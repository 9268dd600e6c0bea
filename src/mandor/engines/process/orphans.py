"""Finds and kills processes that a killed supervisor left running."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence

from mandor.engines.base import Unit
from mandor.engines.process.launch import UNIT_VARIABLE
from mandor.engines.shim import groups

_SECONDS_MAX = 2.0


def kill_orphans(unit: Unit, paths: Sequence[str]) -> None:
    """Kill the processes in the unit's cgroups or, without cgroups, those with its environment variable."""
    until = time.monotonic() + _SECONDS_MAX
    while time.monotonic() < until:
        groups.kill(paths)
        if not _kill_marked(unit) and not any(groups.members(path) for path in paths):
            break
        time.sleep(0.005)
    groups.remove(paths, seconds=0.5)


def _kill_marked(unit: Unit) -> int:
    """Kill the processes whose environment has the unit's name; return their number."""
    mark = f"\0{UNIT_VARIABLE}={unit}\0".encode()
    count = 0
    for pid in _numbers():
        try:
            process = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            # Read while the pidfd is open, so that it is the environment of this process.
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark in b"\0" + file.read():
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    count += 1
        except OSError:
            continue  # The process of another user, or it has ended.
        finally:
            os.close(process)
    return count


def _numbers() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())
