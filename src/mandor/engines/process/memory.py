"""Finds a folder in memory for data that must not be on disk: launches with their environment, and secret files."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from mandor.engines.process.hierarchy import decode_mount

MEMORY_KINDS = frozenset({"tmpfs", "ramfs"})


def find_memory(directory: Path) -> Path | None:
    """Return the folder in memory of the engine with this `directory`, created if need be; None: the node has none.

    It is empty after a reboot, when no unit runs any more."""
    own = hashlib.sha256(str(directory).encode()).hexdigest()[:12]
    for place in _places():
        try:
            if _in_memory(place) and _is_ours(place / "mandor") and _is_ours(place / "mandor" / own):
                return (place / "mandor" / own).resolve()
        except OSError:
            continue
    return None


def _places() -> Iterator[Path]:
    """Yield folders that may be in memory, those that only this user can write first."""
    if os.geteuid() == 0:
        yield Path("/run")
    elif (own := Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}")).is_dir():
        yield own
    shared = Path("/dev/shm")  # noqa: S108 (the folder made there is checked to be this user's)
    folder = shared / f"mandor-{os.geteuid()}"
    if shared.is_dir() and _in_memory(shared) and _is_ours(folder):
        yield folder


def _is_ours(folder: Path) -> bool:
    """Create a folder that only this user can read; False: it exists with other permissions."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _in_memory(path: Path) -> bool:
    """Return whether the file system of that path is in memory."""
    real = str(path.resolve())
    best, kind = "", ""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            mount = decode_mount(before.split()[4])
            if f"{real}/".startswith(mount.rstrip("/") + "/") and len(mount) >= len(best):
                best, kind = mount, after.split(" ", 1)[0]
    return kind in MEMORY_KINDS
