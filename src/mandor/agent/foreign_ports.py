"""Node ports that other programs use."""

import errno
import socket
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from mandor.agent.order import Order
from mandor.agent.ports import ports_of
from mandor.lib.clock import Clock
from mandor.lib.loopback import is_loopback
from mandor.lib.port_holder import port_holder
from mandor.model.instance import PortStatus
from mandor.model.node import PortRange

TAKEN_MOST = 64
"""Largest number of ports in use by other programs that a node reports; older ones are dropped."""
REPORTED_SECONDS = 60.0

PortInUse = Callable[[int, str], bool]
"""(port, protocol) → whether a program on this machine uses it."""


def no_port_in_use(port: int, protocol: str) -> bool:
    return False


def port_in_use(port: int, protocol: str) -> bool:
    """Return whether the port is in use on any address; a port that cannot be bound for other reasons is free."""
    kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as probe:
        if kind is socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT do not count
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def server_ports(servers: Iterable[str]) -> list[int]:
    """Return the ports of those servers that are on this machine, by their URLs."""
    urls = [urlsplit(each) for each in servers]
    return [each.port for each in urls if each.port and is_loopback(each.hostname or "")]


@dataclass(slots=True)
class ForeignPorts:
    """Node ports that were in use by another program when an instance was about to start, while they still are."""

    port_in_use: PortInUse
    clock: Clock
    server_ports: Collection[int] = ()
    """Ports of API servers on this machine."""
    found: dict[int, str] = field(default_factory=dict)
    """Protocol by port."""
    _reported: dict[int, float] = field(default_factory=dict)
    """Time until which an engine's report counts: it may find what binding does not, such as a packet filter rule."""

    def taken(self, order: Order) -> str:
        """Return why the instance cannot have its ports; empty: it can."""
        for each in ports_of(order, published=True):
            if each.host is not None and self.port_in_use(each.host, each.protocol):
                self._note(each.host, each.protocol)
                return f"{each.protocol} port {each.host} of this node is in use by {self._user(each)}"
        return ""

    def _user(self, port: PortStatus) -> str:
        """Return the program that uses the port, and for a server of Mandor how to change it."""
        holder = port_holder(port.host or 0, port.protocol)
        if any(port.host == server and port.protocol == "tcp" for server in self.server_ports):
            shown = f", {holder}" if holder else ""
            return f"the API server of Mandor{shown}; start it with --listen HOST:PORT on another port"
        return f"{holder}, a program outside Mandor" if holder else "a program outside Mandor"

    def report(self, order: Order, port: int) -> None:
        """Record that an engine found the port in use."""
        mine = (each.protocol for each in ports_of(order, published=True) if each.host == port)
        self._note(port, next(mine, "tcp"))
        self._reported[port] = self.clock.monotonic() + REPORTED_SECONDS

    def _note(self, port: int, protocol: str) -> None:
        self.found.pop(port, None)
        if len(self.found) >= TAKEN_MOST:
            del self.found[next(iter(self.found))]
        self.found[port] = protocol

    def recheck(self) -> None:
        now = self.clock.monotonic()
        self._reported = {port: until for port, until in self._reported.items() if until > now and port in self.found}
        self.found = {
            port: protocol
            for port, protocol in self.found.items()
            if port in self._reported or self.port_in_use(port, protocol)
        }

    def within(self, ports: PortRange) -> PortRange:
        return msgspec.structs.replace(ports, taken=tuple(sorted(self.found)))
