"""Deletes the folders of removed units, without anything that is mounted in them."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from mandor.engines.process.hierarchy import decode_mount
from mandor.engines.shim import groups

log = logging.getLogger(__name__)


def discard(folder: Path, paths: Sequence[str]) -> None:
    """Delete the folder of a unit and the cgroups at these paths, with their processes."""
    groups.kill(paths)
    groups.remove(paths, seconds=5.0)
    _delete(folder)


def empty(trash: Path) -> None:
    """Delete folders that an earlier agent left in the trash."""
    for folder in trash.iterdir():
        _delete(folder)


def _delete(folder: Path) -> None:
    if _mounted_below(folder):
        log.warning("%s is kept: a task left something mounted there", folder)
        return
    shutil.rmtree(folder, ignore_errors=True)


def _mounted_below(folder: Path) -> bool:
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(decode_mount(line.split()[4]).startswith(f"{folder}/") for line in lines)
