"""The ports of an instance as they are on its node, and ports of the node that somebody else holds."""

import errno
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from mandor.agent.order import Order
from mandor.lib.clock import Clock
from mandor.model.instance import PortStatus
from mandor.model.node import Capabilities, PortRange
from mandor.model.workload import AUTO

TAKEN_MOST = 64
"""So many ports of strangers a node tells of; the latest count."""
TOLD_SECONDS = 60.0

Holds = Callable[[int, str], bool]
"""Whether anybody on this machine has that port of that protocol."""


def no_port_in_use(port: int, protocol: str) -> bool:
    return False


def port_in_use(port: int, protocol: str) -> bool:
    """Tried out, on all addresses; a port that this program may not open counts as free."""
    kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as probe:
        if kind is socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that linger hold nothing
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def publishes(order: Order, engine: str, capabilities: Mapping[str, Capabilities]) -> bool:
    """Whether its engine leads ports of the node to it; else it has the node's own network, and its ports with it."""
    known = capabilities.get(engine)
    if known is None or "ports" not in known.extras:
        return False
    tasks = order.template.tasks.values() if order.template is not None else ()
    return all(task.options.get(engine, {}).get("network") != "host" for task in tasks)


def ports_of(order: Order, *, published: bool) -> tuple[PortStatus, ...]:
    """`published`: see `publishes`. Without it a task has to listen on the node's port itself."""
    chosen = order.instance.spec.ports or {}
    found = []
    for name, port in (order.template.ports if order.template is not None else {}).items():
        host = chosen.get(name) if port.host == AUTO else port.host
        assert not isinstance(host, str)
        inside = (port.port or host) if published or host is None else host
        if inside is not None:
            found.append(PortStatus(name=name, port=inside, host=host, protocol=port.protocol))
    return tuple(found)


def unchosen(order: Order) -> str:
    """A port that was to be chosen for it and was not; empty: all were."""
    chosen = order.instance.spec.ports or {}
    ports = order.template.ports if order.template is not None else {}
    return next((name for name, port in ports.items() if port.host == AUTO and name not in chosen), "")


@dataclass(slots=True)
class ForeignPorts:
    """Ports that were found taken when an instance was to begin, as long as they are."""

    holds: Holds
    clock: Clock
    found: dict[int, str] = field(default_factory=dict)
    """Their protocols."""
    _told: dict[int, float] = field(default_factory=dict)
    """Until when an engine's word counts: it may see what cannot be tried out, such as a rule of the packet filter."""

    def taken(self, order: Order) -> str:
        """Why it cannot have its ports; empty: it can."""
        for each in ports_of(order, published=True):
            if each.host is not None and self.holds(each.host, each.protocol):
                self._note(each.host, each.protocol)
                return f"{each.protocol} port {each.host} of this node is taken by a program that is not Mandor's"
        return ""

    def told(self, order: Order, port: int) -> None:
        """Its engine could not give it that port."""
        mine = (each.protocol for each in ports_of(order, published=True) if each.host == port)
        self._note(port, next(mine, "tcp"))
        self._told[port] = self.clock.monotonic() + TOLD_SECONDS

    def _note(self, port: int, protocol: str) -> None:
        self.found.pop(port, None)
        if len(self.found) >= TAKEN_MOST:
            del self.found[next(iter(self.found))]
        self.found[port] = protocol

    def look_again(self) -> None:
        now = self.clock.monotonic()
        self._told = {port: until for port, until in self._told.items() if until > now and port in self.found}
        self.found = {
            port: protocol for port, protocol in self.found.items() if port in self._told or self.holds(port, protocol)
        }

    def within(self, ports: PortRange) -> PortRange:
        return msgspec.structs.replace(ports, taken=tuple(sorted(self.found)))
