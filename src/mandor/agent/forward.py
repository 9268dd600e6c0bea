"""Connects forwarded sessions with a TCP port of an instance on this node."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address

from mandor.agent.link import Duplex
from mandor.agent.stream import END, FRAME_MOST, STDIN, STDOUT, until_first, wait_for_hang_up
from mandor.errors import Unavailable
from mandor.lib.tcp_reset import reset
from mandor.model.record import SessionSpec
from mandor.network.forward_plan import ForwardTarget

CONNECT_SECONDS = 10.0
"""Longest wait for a connection to one address."""

FindTargets = Callable[[SessionSpec], Sequence[ForwardTarget]]
"""Returns the addresses of the port of a session; raises `NotFound` or `Invalid`."""


class PortForwarder:
    """Serves sessions that forward one connection each."""

    def __init__(self, find: FindTargets) -> None:
        self._find = find

    async def serve(self, spec: SessionSpec, line: Duplex) -> None:
        """Pass bytes both ways until both directions have ended, or the caller hangs up."""
        reader, writer = await connect(spec.instance, spec.port, self._find(spec))
        sent_all = asyncio.Event()
        try:
            await until_first(_send(reader, line, sent_all), _take(writer, line, sent_all))
        finally:
            if not sent_all.is_set():
                reset(writer.transport)  # The caller broke off: the instance sees a reset, not a regular end.
            writer.close()
        await wait_for_hang_up(line)


async def connect(
    name: str, port: str, targets: Sequence[ForwardTarget]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that answers."""
    reasons = []
    for each in targets:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await _open(each)
        except TimeoutError:
            reasons.append(f"{each.address} port {each.port}: no answer within {CONNECT_SECONDS:g} s")
        except OSError as error:
            reasons.append(f"{each.address} port {each.port}: {error.strerror or error}")
    message = f"cannot connect to the port {port} of {name}: {'; '.join(reasons)}"
    raise Unavailable(message, hint="check that the task listens on this port")


async def _open(target: ForwardTarget) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    line = socket.socket(socket.AF_INET6 if ip_address(target.address).version == 6 else socket.AF_INET)
    try:
        line.setblocking(False)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.own:
            # Behind a router the same address belongs to a machine of another network.
            line.setsockopt(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)
        await asyncio.get_running_loop().sock_connect(line, (target.address, target.port))
        return await asyncio.open_connection(sock=line, limit=FRAME_MOST)
    except BaseException:
        line.close()
        raise


async def _send(reader: asyncio.StreamReader, line: Duplex, sent_all: asyncio.Event) -> None:
    while data := await reader.read(FRAME_MOST):
        await line.send(bytes([STDOUT]) + data)
    await line.send(bytes([STDOUT]))
    await sent_all.wait()
    await line.send(bytes([END]) + b"{}")


async def _take(writer: asyncio.StreamWriter, line: Duplex, sent_all: asyncio.Event) -> None:
    while (frame := await line.receive()) is not None:
        if frame[:1] != bytes([STDIN]) or sent_all.is_set():
            continue
        if len(frame) > 1:
            writer.write(frame[1:])
            await writer.drain()
        else:
            writer.write_eof()
            sent_all.set()
