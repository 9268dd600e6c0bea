"""Detects the usable cgroup hierarchies, version 1 or 2, and plans the groups of a unit."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mandor.engines.base import Launch

if TYPE_CHECKING:
    from mandor.engines.shim.groups import Group

USEFUL = frozenset({"cpu", "cpuacct", "memory", "pids"})
LIMITS = {"cpu": "cpu", "memory": "memory", "pids": "processes"}
PERIOD_US = 100_000
QUOTA_US_MIN = 1_000
"""Least value that the kernel accepts."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted cgroup hierarchy."""

    mount: str
    version: int
    controllers: frozenset[str]
    """Controllers in use. A hierarchy without any still lists members, and kills them together (version 2)."""


def read_hierarchies(mountinfo: str) -> list[Hierarchy]:
    """Return the hierarchies to use, from the text of /proc/self/mountinfo."""
    found: dict[frozenset[str], Hierarchy] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        mount = decode_mount(before.split()[4])
        kind, _, options = after.split(" ", 2)
        names = frozenset(options.split(" ")[-1].split(","))
        if kind == "cgroup2":
            found.setdefault(frozenset({"2"}), Hierarchy(mount, 2, _handed_down(mount)))
        elif kind == "cgroup" and (names & USEFUL or "name=systemd" in names):
            found.setdefault(names, Hierarchy(mount, 1, names & USEFUL))
    return sorted(found.values(), key=lambda each: (each.version, each.mount))


def decode_mount(path: str) -> str:
    """Decode a mount point of /proc/self/mountinfo, where blanks, tabs and backslashes are octal escapes."""
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _handed_down(mount: str) -> frozenset[str]:
    """Return the controllers that groups below a version 2 mount can have."""
    try:
        offered = frozenset(Path(mount, "cgroup.controllers").read_text(encoding="ascii").split())
    except OSError:
        return frozenset()
    return offered & USEFUL


def _enabled(tree: Hierarchy) -> Hierarchy:
    """Return a version 2 hierarchy with the controllers that its groups really get; in a container some may be
    missing."""
    if tree.version == 1:
        return tree
    control = Path(tree.mount, "cgroup.subtree_control")
    reach = set()
    for controller in sorted(tree.controllers):
        try:
            if controller not in control.read_text(encoding="ascii").split():
                control.write_text(f"+{controller}", encoding="ascii")
            reach.add(controller)
        except OSError:
            continue
    return replace(tree, controllers=frozenset(reach))


class Hierarchies:
    """Writable hierarchies, and this engine's group in each: `mandor/<hash of its folder>`."""

    def __init__(self, trees: Iterable[Hierarchy], directory: Path) -> None:
        self._own = hashlib.sha256(str(directory).encode()).hexdigest()[:12]
        self.trees = [_enabled(tree) for tree in trees if os.access(tree.mount, os.W_OK)]

    @classmethod
    def detect(cls, directory: Path) -> Hierarchies:
        try:
            text = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        except OSError:
            text = ""
        return cls(read_hierarchies(text), directory)

    @property
    def limits(self) -> frozenset[str]:
        """Limits that can be enforced: cpu, memory, processes."""
        return frozenset(LIMITS[name] for tree in self.trees for name in tree.controllers if name in LIMITS)

    def paths(self, name: str) -> list[str]:
        return [f"{tree.mount}/mandor/{self._own}/{name}" for tree in self.trees]

    def groups(self, name: str, launch: Launch | None = None) -> list[Group]:
        """Return a group in each hierarchy, with the limits whose controllers it has."""
        return [
            {"path": path, "version": tree.version, "above": self._above(tree), "writes": _writes(tree, launch)}
            for tree, path in zip(self.trees, self.paths(name), strict=True)
        ]

    def _above(self, tree: Hierarchy) -> list[tuple[str, str]]:
        controllers = " ".join(sorted(tree.controllers)) if tree.version == 2 else ""
        top = f"{tree.mount}/mandor"
        return [(top, controllers), (f"{top}/{self._own}", controllers)]

    def made(self) -> dict[str, list[str]]:
        """Return the existing groups of this engine, by name."""
        found: dict[str, list[str]] = {}
        for folder in self.paths(""):
            for name in _folders(folder):
                found.setdefault(name, []).append(f"{folder}{name}")
        return found

    def remove_empty(self) -> None:
        """Remove the engine's group in each hierarchy if it is empty."""
        for tree in self.trees:
            for path in (f"{tree.mount}/mandor/{self._own}", f"{tree.mount}/mandor"):
                try:
                    os.rmdir(path)
                except OSError:
                    break


def _folders(path: str) -> Sequence[str]:
    try:
        return [entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _writes(tree: Hierarchy, launch: Launch | None) -> list[tuple[str, str]]:
    """Return the values to write, by file; a file whose name starts with `?` may be missing."""
    if launch is None:
        return []
    writes: list[tuple[str, str]] = []
    if launch.cpu_milli and "cpu" in tree.controllers:
        quota = max(QUOTA_US_MIN, launch.cpu_milli * PERIOD_US // 1000)
        if tree.version == 2:
            writes.append(("cpu.max", f"{quota} {PERIOD_US}"))
        else:
            writes += [("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", str(quota))]
    if launch.memory_bytes and "memory" in tree.controllers:
        amount = str(launch.memory_bytes)
        if tree.version == 2:
            writes += [("memory.max", amount), ("?memory.swap.max", "0"), ("?memory.oom.group", "1")]
        else:
            writes += [("memory.limit_in_bytes", amount), ("?memory.memsw.limit_in_bytes", amount)]
    if launch.processes and "pids" in tree.controllers:
        writes.append(("pids.max", str(launch.processes)))
    return writes
