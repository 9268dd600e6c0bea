"""Sends commands to the sockets of HAProxy."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from mandor.errors import Unavailable
from mandor.network.detached import short_path
from mandor.network.gateway.haproxy.configuration import MASTER_SOCKET

ANSWER_BYTES_MOST = 64 << 20
CALL_SECONDS_MOST = 10.0
TOGETHER_MOST = 64
"""Commands that are sent with one connection."""


async def ask(socket: Path, command: str) -> str:
    """Send one command and return the answer; raise `Unavailable` if HAProxy does not answer."""
    try:
        async with asyncio.timeout(CALL_SECONDS_MOST):
            with short_path(socket.parent) as folder:
                reader, writer = await asyncio.open_unix_connection(f"{folder}/{socket.name}")
            try:
                writer.write(command.encode() + b"\n")
                if socket.name == MASTER_SOCKET:
                    writer.write_eof()  # the master process waits for further commands
                await writer.drain()
                parts: list[bytes] = []
                size = 0
                while part := await reader.read(1 << 16):
                    size += len(part)
                    if size > ANSWER_BYTES_MOST:
                        raise Unavailable(f"HAProxy sent an answer of more than {ANSWER_BYTES_MOST} bytes")
                    parts.append(part)
                return b"".join(parts).decode(errors="replace")
            finally:
                writer.close()
    except TimeoutError:
        raise Unavailable(f"HAProxy did not answer in {CALL_SECONDS_MOST:g} s") from None
    except OSError as error:
        raise Unavailable(
            f"HAProxy cannot be reached at {socket}: {error.strerror or error}", hint="is the proxy running?"
        ) from error


async def send(socket: Path, commands: Sequence[str], *, prefix: str = "") -> list[str]:
    """Send commands without a payload, many with one connection, and return the answers. `prefix`: of each line."""
    return [
        await ask(socket, prefix + "; ".join(commands[start : start + TOGETHER_MOST]))
        for start in range(0, len(commands), TOGETHER_MOST)
    ]
