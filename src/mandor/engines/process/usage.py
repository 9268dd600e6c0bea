"""Measures the usage of units from their cgroups, else from the processes below their supervisors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mandor.engines.base import Unit, Usage
from mandor.engines.process.hierarchy import Hierarchies
from mandor.engines.shim import groups

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def measure(supervisors: Mapping[Unit, int], trees: Hierarchies) -> dict[Unit, Usage]:
    """Return the usage by unit; `supervisors`: process ids of the supervisors."""
    found: dict[Unit, Usage] = {}
    for unit in supervisors:
        paths = trees.paths(str(unit))
        cpu, memory = groups.cpu_seconds(paths), groups.memory_bytes(paths)
        if cpu is not None and memory is not None:
            found[unit] = Usage(cpu, memory)
    rest = {unit: pid for unit, pid in supervisors.items() if unit not in found}
    return found | _measure_processes(rest) if rest else found


class _Process(NamedTuple):
    parent: int
    cpu_seconds: float
    memory_bytes: int


def _measure_processes(supervisors: Mapping[Unit, int]) -> dict[Unit, Usage]:
    """Measure all units with one scan of /proc."""
    processes = {int(name): process for name in os.listdir("/proc") if name.isdecimal() and (process := _read(name))}
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    return {unit: _sum(pid, processes, children) for unit, pid in supervisors.items()}


def _sum(supervisor: int, processes: Mapping[int, _Process], children: Mapping[int, list[int]]) -> Usage:
    cpu, memory = 0.0, 0
    ahead = list(children.get(supervisor, ()))
    while ahead:
        pid = ahead.pop()
        cpu += processes[pid].cpu_seconds
        memory += processes[pid].memory_bytes
        ahead += children.get(pid, ())
    return Usage(cpu, memory)


def _read(name: str) -> _Process | None:
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        return None
    if len(fields) < 22:
        return None
    # CPU time of the process and of its ended children.
    ticks = sum(int(field) for field in fields[11:15])
    return _Process(int(fields[1]), ticks / _TICKS, int(fields[21]) * _PAGE_BYTES)


def measure_disk(folders: Mapping[Unit, Path]) -> dict[Unit, int]:
    """Return the disk usage of the folders of units in bytes: written files and logs."""
    return {unit: sum(map(_bytes, _files(folder))) for unit, folder in folders.items()}


def _files(folder: Path) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        yield from (os.path.join(place, name) for name in names)


def _bytes(path: str) -> int:
    try:
        return os.lstat(path).st_blocks * 512
    except OSError:
        return 0  # It was deleted meanwhile.
