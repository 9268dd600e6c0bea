"""What went over the network of a container: the interface does not tell, the kernel does."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Traffic(NamedTuple):
    received: int = 0
    sent: int = 0


def traffic_of(process: int) -> Traffic:
    """As the network that this process sees counts it; nothing where that is the node's own, or cannot be seen."""
    try:
        if Path(f"/proc/{process}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
            return Traffic()
        return read_devices(Path(f"/proc/{process}/net/dev").read_text())
    except OSError:
        return Traffic()


def read_devices(text: str) -> Traffic:
    """Of all devices but the loopback; received bytes are the first number, sent bytes the ninth."""
    lines = [line.partition(":") for line in text.splitlines() if ":" in line]
    counters = [numbers.split() for name, _, numbers in lines if name.strip() != "lo"]
    return Traffic(sum(int(each[0]) for each in counters), sum(int(each[8]) for each in counters))
