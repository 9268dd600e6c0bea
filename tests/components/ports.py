"""Free loopback ports that stay free until a server takes them."""

from __future__ import annotations

import random
import socket

# Below the kernel's ephemeral range, so that no outgoing connection takes the port of a server that is restarting.
LOWEST, HIGHEST = 20_000, 32_000


def free_port() -> int:
    """A loopback port that nobody listens on."""
    for _ in range(200):
        port = random.randint(LOWEST, HIGHEST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port between {LOWEST} and {HIGHEST}")
