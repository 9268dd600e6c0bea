"""Free loopback ports that stay free until a server takes them."""

from __future__ import annotations

import random
import socket

# Below the kernel's ephemeral range, so that no outgoing connection takes the port of a server that is restarting.
LOWEST, HIGHEST = 20_000, 32_000


def free_port() -> int:
    """A loopback port that nobody listens on."""
    return free_ports(apart=1, count=1)


def free_ports(*, apart: int, count: int) -> int:
    """The first of `count` free ports, each `apart` from the one before."""
    for _ in range(200):
        first = random.randint(LOWEST, HIGHEST)
        if all(_free(first + apart * index) for index in range(count)):
            return first
    raise RuntimeError(f"no free port between {LOWEST} and {HIGHEST}")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
