"""Takes away the empty cgroups that a daemon leaves behind."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PATIENCE_SECONDS = 3.0


def remove_cgroups(name: str) -> None:
    """In every hierarchy; what still runs in one keeps it."""
    tops = [*ROOT.glob(name), *ROOT.glob(f"*/{name}")]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(top.exists() for top in tops) and time.monotonic() < deadline:
        for top in tops:
            for folder, _, _ in os.walk(top, topdown=False):
                with suppress(OSError):
                    os.rmdir(folder)
        time.sleep(0.05)


def remove_empty(*names: str) -> None:
    """Groups that others may use as well: only where there is nothing in them."""
    for name in names:
        for path in (ROOT / name, *ROOT.glob(f"*/{name}")):
            with suppress(OSError):
                path.rmdir()
