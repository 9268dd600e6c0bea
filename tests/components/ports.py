"""Free loopback ports that stay free until a server takes them."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

# Below the kernel's ephemeral range, so that no outgoing connection takes the port of a server that is restarting.
LOWEST, HIGHEST = 20_000, 32_000


def free_port() -> int:
    """A loopback port that nobody listens on."""
    return free_base([0])


def free_base(offsets: Sequence[int]) -> int:
    """A port number such that it plus each offset is free."""
    for _ in range(200):
        base = random.randint(LOWEST, HIGHEST)
        if all(_free(base + offset) for offset in offsets):
            return base
    raise RuntimeError(f"no free port between {LOWEST} and {HIGHEST}")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
