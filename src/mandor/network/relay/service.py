"""One frontend of the relay process: its listeners, and the connections and UDP flows that it relays."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address

from mandor.lib.tcp_reset import reset
from mandor.network.relay.flows import UdpFlows
from mandor.network.relay.load import Limit, Load
from mandor.network.relay.message import Entry

BUFFER_BYTES = 256 << 10  # unsent bytes of one direction above which the relay stops reading
CONNECT_SECONDS_MOST = 5.0  # per endpoint
CONNECT_ATTEMPTS_MOST = 5  # endpoints tried for one connection
BACKLOG = 512


class Service(Load):
    """Serves one frontend."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.entry: Entry | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self._listeners: dict[str, Callable[[], None]] = {}
        """Functions that close the listener, by address."""
        self._held: dict[str, socket.socket] = {}
        """Bound sockets that do not listen, so that connections are refused and the port is not given away."""
        self._flows: list[UdpFlows] = []

    async def update(self, entry: Entry) -> str:
        """Serve this entry from now on; return the problem of an address that cannot be served."""
        before = self.entry
        if before is not None and (before.port, before.protocol) != (entry.port, entry.protocol):
            self.close()
        self.entry = entry
        self.choice.update(entry.endpoints, entry.balance, entry.affinity_seconds)
        places = {each[:2] for each in entry.endpoints}
        for flows in self._flows:
            flows.keep_only(places)
        wanted = set(entry.addresses) if self.choice.possible else set()
        for address in [each for each in self._listeners if each not in wanted]:
            self._listeners.pop(address)()
        problems = []
        for address in entry.addresses:
            try:
                await self._serve(address, entry)
            except OSError as error:
                problems.append(_explain(address, entry, error))
        for address in [each for each in self._held if each not in entry.addresses]:
            self._held.pop(address).close()
        return "; ".join(problems)

    async def _serve(self, address: str, entry: Entry) -> None:
        if address in self._listeners:
            return
        loop = asyncio.get_running_loop()
        if entry.protocol == "udp":
            if self.choice.possible:
                line = _bound(address, entry.port, socket.SOCK_DGRAM)
                flows = UdpFlows(line, self)
                self._flows.append(flows)

                def end() -> None:
                    self._flows.remove(flows)
                    flows.close()

                self._listeners[address] = end
            return
        held = self._held.get(address) or _bound(address, entry.port, socket.SOCK_STREAM)
        if not self.choice.possible:
            self._held[address] = held
            return
        self._held.pop(address, None)
        try:
            server = await loop.create_server(lambda: Client(self), sock=held, backlog=BACKLOG)
        except OSError:
            held.close()
            raise
        self._listeners[address] = server.close

    def close(self) -> None:
        """Stop listening; open connections go on, UDP flows end."""
        for end in self._listeners.values():
            end()
        for each in self._held.values():
            each.close()
        self._listeners.clear()
        self._held.clear()


class Side(asyncio.Protocol):
    """One side of a relayed connection: writes to the other, and stops reading while the other cannot write."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.transport: asyncio.Transport | None = None
        self.other: Side | None = None
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]
        transport.set_write_buffer_limits(BUFFER_BYTES)  # type: ignore[attr-defined]
        line = transport.get_extra_info("socket")
        with suppress(OSError):
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        self.ended = True
        if self.other is not None and self.other.transport is not None:
            with suppress(OSError, RuntimeError):
                self.other.transport.write_eof()
            return not self.other.ended
        return True

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        other = self.other
        if other is not None and other.transport is not None:
            if error is None:
                other.transport.close()
            else:
                other.transport.abort()
        self.transport = None


class Client(Side):
    """The side of the client; connects to an endpoint when it is made."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._counted = False
        self._early: list[bytes] = []
        """Data that arrived before the endpoint was connected; uvloop reads once more after `pause_reading`."""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        if not self.service.limit.allows(self.service.open):
            self.service.failures += 1
            reset(self.transport)
            return
        self._counted = True
        self.service.limit.open += 1
        self.service.open += 1
        self.service.connections += 1
        self.transport.pause_reading()
        self._task = asyncio.get_running_loop().create_task(self._connect())
        self.service.tasks.add(self._task)
        self._task.add_done_callback(self.service.tasks.discard)

    def data_received(self, data: bytes) -> None:
        self.service.sent += len(data)
        if self.other is None and self.transport is not None:
            self._early.append(data)
            self.transport.pause_reading()
            return
        super().data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self._counted:
            self._counted = False
            self.service.limit.open -= 1
            self.service.open -= 1
        if self._task is not None:
            self._task.cancel()

    async def _connect(self) -> None:
        loop, failed = asyncio.get_running_loop(), set[tuple[str, int]]()
        assert self.transport is not None
        peer = self.transport.get_extra_info("peername")
        client = peer[0] if peer else ""
        while len(failed) < CONNECT_ATTEMPTS_MOST:
            place = self.service.choice.pick(client, loop.time(), failed)
            if place is None:
                break
            side = Server(self.service, place)
            try:
                async with asyncio.timeout(CONNECT_SECONDS_MOST):
                    await loop.create_connection(lambda side=side: side, *place)  # type: ignore[misc]
            except (OSError, TimeoutError):
                failed.add(place)
                continue
            self.other, side.other = side, self
            if side.transport is not None:
                side.transport.writelines(self._early)
                if self.ended:
                    side.transport.write_eof()
            self._early.clear()
            self.transport.resume_reading()
            return
        self.service.failures += 1
        if self.transport is not None:
            reset(self.transport)


class Server(Side):
    """The side of the endpoint."""

    def __init__(self, service: Service, place: tuple[str, int]) -> None:
        super().__init__(service)
        self._place = place

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.service.opened(self._place)

    def data_received(self, data: bytes) -> None:
        self.service.received += len(data)
        super().data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.service.closed(self._place)
        super().connection_lost(error)


def _bound(address: str, port: int, kind: socket.SocketKind) -> socket.socket:
    version = ip_address(address).version
    line = socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, kind)
    try:
        if kind is socket.SOCK_STREAM:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        line.setblocking(False)
        line.bind((address, port))
    except OSError:
        line.close()
        raise
    return line


def _explain(address: str, entry: Entry, error: OSError) -> str:
    text = f"{entry.protocol} {address} port {entry.port} cannot be bound: {os.strerror(error.errno or 0)}"
    if error.errno in (errno.EACCES, errno.EPERM):
        text += f"; allow it with `sysctl net.ipv4.ip_unprivileged_port_start={entry.port}`"
    return text
