"""Ends a TCP connection with a reset, so that the peer does not take the end for a regular one."""

import asyncio
import socket
from contextlib import suppress


def reset(transport: asyncio.WriteTransport) -> None:
    """Close the connection; the peer sees a reset, and unsent data is lost."""
    line = transport.get_extra_info("socket")
    if line is not None:
        with suppress(OSError):
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    transport.abort()
