"""Reads from cgroups whether the kernel killed a process of a container for lack of memory."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def killed_for_memory(name: str) -> bool:
    """Return whether the kernel counted an OOM kill; False if the counter cannot be read."""
    places = (
        ROOT / "memory" / f"lxc.payload.{name}" / "memory.oom_control",
        ROOT / f"lxc.payload.{name}" / "memory.events",
    )
    for path in places:
        try:
            found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
        except OSError:
            continue
        return found is not None and int(found.group(1)) > 0
    return False
