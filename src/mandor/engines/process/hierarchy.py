"""Which cgroups this machine lets us use, version 1 or 2, and what groups a unit gets."""

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
"""The kernel takes no less."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted tree of cgroups."""

    mount: str
    version: int
    controllers: frozenset[str]
    """Those we use. A tree without any still tells members apart, and kills them at once (version 2)."""


def read_hierarchies(mountinfo: str) -> list[Hierarchy]:
    """The trees worth a group for each unit, from the text of /proc/self/mountinfo."""
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
    """A mount point as /proc/self/mountinfo has it: blanks, tabs and backslashes are written as octal numbers."""
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def _handed_down(mount: str) -> frozenset[str]:
    """What a group below a version 2 mount can be given."""
    try:
        offered = frozenset(Path(mount, "cgroup.controllers").read_text(encoding="ascii").split())
    except OSError:
        return frozenset()
    return offered & USEFUL


def _enabled(tree: Hierarchy) -> Hierarchy:
    """Version 2: with the controllers that really reach the groups below; inside a container they may not."""
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
    """The trees this process may write to, and this engine's place in each: `mandor/<hash of its folder>`."""

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
        """What can be limited here: cpu, memory, processes."""
        return frozenset(LIMITS[name] for tree in self.trees for name in tree.controllers if name in LIMITS)

    def paths(self, name: str) -> list[str]:
        return [f"{tree.mount}/mandor/{self._own}/{name}" for tree in self.trees]

    def groups(self, name: str, launch: Launch | None = None) -> list[Group]:
        """A group in each tree, with the launch's limits where that tree has the controller."""
        return [
            {"path": path, "version": tree.version, "above": self._above(tree), "writes": _writes(tree, launch)}
            for tree, path in zip(self.trees, self.paths(name), strict=True)
        ]

    def _above(self, tree: Hierarchy) -> list[tuple[str, str]]:
        controllers = " ".join(sorted(tree.controllers)) if tree.version == 2 else ""
        top = f"{tree.mount}/mandor"
        return [(top, controllers), (f"{top}/{self._own}", controllers)]

    def made(self) -> dict[str, list[str]]:
        """The groups there are in this engine's place, by name."""
        found: dict[str, list[str]] = {}
        for folder in self.paths(""):
            for name in _folders(folder):
                found.setdefault(name, []).append(f"{folder}{name}")
        return found

    def remove_empty(self) -> None:
        """Remove our own place in each tree when nothing is in it any more."""
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
    """What to write into which file; a `?` before the name: it may be missing."""
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
