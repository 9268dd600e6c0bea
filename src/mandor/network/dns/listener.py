"""The sockets of a name server: UDP and TCP on one address."""

import asyncio
import errno
import os
import socket
import struct
from collections import Counter
from contextlib import suppress
from ipaddress import ip_address

from mandor.network.dns.loopback import add_address, remove_address
from mandor.network.dns.message import HEADER_BYTES, Query
from mandor.network.dns.responder import Responder, answer_completely
from mandor.network.dns.wire import Listen

DATAGRAMS_MOST = 64  # per turn of the loop, so that TCP and the agent are served during a flood
DATAGRAM_BYTES_MOST = 4_096
BUFFER_BYTES = 1 << 20  # of the UDP socket
CONNECTIONS_MOST = 256
CONNECTIONS_PER_CLIENT_MOST = 32
QUERIES_MOST = 256  # per TCP connection
IDLE_SECONDS_MOST = 5.0  # for each query and each answer of a TCP connection
BACKLOG = 128
IP_FREEBIND = 15  # of Linux; the socket module lacks it


class Sockets:
    """Bound sockets, with the address that was added for them."""

    def __init__(self, address: str, udp: socket.socket, tcp: socket.socket, *, added: bool) -> None:
        self.address, self.udp, self.tcp, self.added = address, udp, tcp, added

    @property
    def port(self) -> int:
        """Number of the port."""
        return int(self.udp.getsockname()[1])


def open_sockets(listen: Listen, preferred: str = "") -> Sockets:
    """Bind the first free address. `preferred`: tried first; it was used before."""
    reason: OSError | None = None
    for address in dict.fromkeys([*([preferred] if preferred in listen.addresses else ()), *listen.addresses]):
        try:
            # Bound before the address is added: only the process that has the port adds the address.
            udp, tcp = _bind(address, listen.port, missing=listen.add)
        except OSError as error:
            reason = error
            if error.errno == errno.EADDRINUSE:
                continue
            break
        try:
            return Sockets(address, udp, tcp, added=listen.add and _is_missing(address) and add_address(address))
        except OSError as error:
            udp.close()
            tcp.close()
            reason = error
            break
    if reason is None:
        raise OSError(errno.EINVAL, "no address is configured")
    where = listen.addresses[0] if len(listen.addresses) == 1 else f"{listen.addresses[0]} and the following addresses"
    raise OSError(reason.errno, f"port {listen.port} of {where} cannot be used: {os.strerror(reason.errno or 0)}")


def _is_missing(address: str) -> bool:
    """Return whether no interface has the address."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as line:
        try:
            line.bind((address, 0))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return True
            raise
    return False


def _bind(address: str, port: int, *, missing: bool) -> tuple[socket.socket, socket.socket]:
    """Bind a UDP and a TCP socket. `missing`: the address may be added later."""
    tcp = socket.socket(_family(address), socket.SOCK_STREAM)
    udp = socket.socket(_family(address), socket.SOCK_DGRAM)
    try:
        for each in (tcp, udp) if missing else ():
            each.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tcp.bind((address, port))
        tcp.listen(BACKLOG)
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        udp.bind((address, tcp.getsockname()[1]))
        for each in (tcp, udp):
            each.setblocking(False)
    except BaseException:
        tcp.close()
        udp.close()
        raise
    return udp, tcp


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET if ip_address(address).version == 4 else socket.AF_INET6


class Listener:
    """Serves the queries that arrive at bound sockets."""

    def __init__(self, sockets: Sockets, responder: Responder) -> None:
        self.sockets, self._responder = sockets, responder
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: Counter[str] = Counter()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to answer."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self.sockets.udp, self._datagrams)
        self._server = await asyncio.start_server(self._converse, sock=self.sockets.tcp, limit=1 << 16)

    def close(self) -> None:
        """Close the sockets; an added address is removed."""
        asyncio.get_running_loop().remove_reader(self.sockets.udp)
        self.sockets.udp.close()
        if self._server is not None:
            self._server.close()
        for each in self._tasks:
            each.cancel()
        if self.sockets.added:
            with suppress(OSError):
                remove_address(self.sockets.address)

    def _datagrams(self) -> None:
        receive, send = self.sockets.udp.recvfrom, self.sockets.udp.sendto
        packed = self._responder.packed
        for _ in range(DATAGRAMS_MOST):
            try:
                data, place = receive(DATAGRAM_BYTES_MOST)
            except OSError:
                return  # nothing more arrived
            answer = packed(data, place[0])
            if answer is None:
                found = self._responder.answer(data, place[0])
                if isinstance(found, Query):
                    task = asyncio.get_running_loop().create_task(self._finish(found, data, place))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                    continue
                answer = found
            if answer is not None:
                with suppress(OSError):  # the client asks again
                    send(answer, place)

    async def _finish(self, query: Query, data: bytes, place: tuple[str, int]) -> None:
        answer = await self._responder.finish(query, data, place[0])
        with suppress(OSError):
            self.sockets.udp.sendto(answer, place)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        client = peer[0] if peer else ""
        if self._open.total() >= CONNECTIONS_MOST or self._open[client] >= CONNECTIONS_PER_CLIENT_MOST:
            writer.transport.abort()
            return
        self._open[client] += 1
        try:
            for _ in range(QUERIES_MOST):
                async with asyncio.timeout(IDLE_SECONDS_MOST):
                    (length,) = struct.unpack("!H", await reader.readexactly(2))
                    if length < HEADER_BYTES:
                        break
                    data = await reader.readexactly(length)
                answer = await answer_completely(self._responder, data, client, tcp=True)
                if answer is None:
                    break
                writer.write(struct.pack("!H", len(answer)) + answer)
                async with asyncio.timeout(IDLE_SECONDS_MOST):
                    await writer.drain()
            writer.close()
        except (OSError, EOFError, TimeoutError):
            writer.transport.abort()
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]
