"""Reads the network traffic of a container from the kernel; the CRI does not report it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Traffic(NamedTuple):
    received: int = 0
    sent: int = 0


def traffic_of(process: int) -> Traffic:
    """Return the traffic in the network namespace of a process; zero for the network of the node, or on an error."""
    try:
        if Path(f"/proc/{process}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
            return Traffic()
        return read_devices(Path(f"/proc/{process}/net/dev").read_text())
    except OSError:
        return Traffic()


def read_devices(text: str) -> Traffic:
    """Return the traffic of all devices but the loopback: the first column is received bytes, the ninth sent bytes."""
    lines = [line.partition(":") for line in text.splitlines() if ":" in line]
    counters = [numbers.split() for name, _, numbers in lines if name.strip() != "lo"]
    return Traffic(sum(int(each[0]) for each in counters), sum(int(each[8]) for each in counters))
