"""UDP flows of one listener of the relay: a socket to an endpoint for each client address and port."""

import asyncio
import socket
from collections import OrderedDict
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from mandor.network.relay.load import Load

IDLE_SECONDS = 60.0  # without a datagram a flow ends
DATAGRAMS_MOST = 64  # read at once before other sockets get a turn
DATAGRAM_BYTES = 65_535


class Flow:
    """One client with its endpoint."""

    __slots__ = ("line", "place", "used")

    def __init__(self, line: socket.socket, place: tuple[str, int], used: float) -> None:
        self.line, self.place, self.used = line, place, used


class UdpFlows:
    """Relays datagrams between one bound socket and the endpoints of its service."""

    def __init__(self, line: socket.socket, service: Load) -> None:
        self._line, self._service = line, service
        self._loop = asyncio.get_running_loop()
        self._flows: OrderedDict[Any, Flow] = OrderedDict()
        """Flows by client, the longest unused first."""
        self._loop.add_reader(line, self._from_clients)
        self._timer = self._loop.call_later(IDLE_SECONDS / 4, self._end_idle)

    def keep_only(self, places: set[tuple[str, int]]) -> None:
        """End the flows to other endpoints; the next datagram of their clients is balanced anew."""
        for client in [client for client, flow in self._flows.items() if flow.place not in places]:
            self._end(client)

    def close(self) -> None:
        """End all flows and close the socket."""
        self._timer.cancel()
        for client in list(self._flows):
            self._end(client)
        self._loop.remove_reader(self._line)
        self._line.close()

    def _from_clients(self) -> None:
        for _ in range(DATAGRAMS_MOST):
            try:
                data, client = self._line.recvfrom(DATAGRAM_BYTES)
            except OSError:
                return
            flow = self._flows.get(client) or self._open(client)
            if flow is None:
                self._service.failures += 1
                continue
            flow.used = self._loop.time()
            self._flows.move_to_end(client)
            try:
                flow.line.send(data)
                self._service.sent += len(data)
            except BlockingIOError:
                pass  # a full buffer drops the datagram, as the network does
            except OSError:
                self._end(client)  # refused: the next datagram goes to another endpoint

    def _open(self, client: Any) -> Flow | None:
        service = self._service
        if not service.limit.allows(service.open):
            if not self._flows:
                return None
            self._end(next(iter(self._flows)))
        place = service.choice.pick(client[0], self._loop.time())
        if place is None:
            return None
        family = socket.AF_INET6 if ip_address(place[0]).version == 6 else socket.AF_INET
        line = socket.socket(family, socket.SOCK_DGRAM)
        try:
            line.setblocking(False)
            line.connect(place)
        except OSError:
            line.close()
            return None
        flow = self._flows[client] = Flow(line, place, self._loop.time())
        service.limit.open += 1
        service.open += 1
        service.connections += 1
        service.opened(place)
        self._loop.add_reader(line, self._from_endpoint, client, flow)
        return flow

    def _from_endpoint(self, client: Any, flow: Flow) -> None:
        for _ in range(DATAGRAMS_MOST):
            try:
                data = flow.line.recv(DATAGRAM_BYTES)
            except BlockingIOError:
                return
            except OSError:
                self._end(client)
                return
            flow.used = self._loop.time()
            self._service.received += len(data)
            with suppress(OSError):
                self._line.sendto(data, client)

    def _end(self, client: Any) -> None:
        flow = self._flows.pop(client)
        self._loop.remove_reader(flow.line)
        flow.line.close()
        self._service.limit.open -= 1
        self._service.open -= 1
        self._service.closed(flow.place)

    def _end_idle(self) -> None:
        oldest = self._loop.time() - IDLE_SECONDS
        for client in [client for client, flow in self._flows.items() if flow.used < oldest]:
            self._end(client)
        self._timer = self._loop.call_later(IDLE_SECONDS / 4, self._end_idle)
