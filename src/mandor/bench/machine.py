"""Describes the machine of a measurement."""

import os
import platform
import sqlite3
import time
from pathlib import Path


def machine() -> dict[str, object]:
    """Return the facts that make two results comparable."""
    names = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    return {
        "at": time.strftime("%Y-%m-%d"),
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory) / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
