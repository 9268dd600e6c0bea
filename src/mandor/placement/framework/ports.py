"""Host ports that are in use on each node, and the choice of free ones."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from mandor.model.meta import Key
from mandor.model.node import PortRange
from mandor.placement.framework.read_only import ReadOnly, Writable


class HostPort(NamedTuple):
    """A fixed port of the node; two instances with the same port cannot share a node."""

    port: int
    protocol: str


class AnyPort(NamedTuple):
    """A port of the node that is chosen at placement, with its name in the group."""

    name: str
    protocol: str


def recorded(wanted: tuple[AnyPort, ...], ports: Mapping[str, int] | None) -> tuple[int, ...]:
    """Return the ports recorded for an instance, in the order of `wanted`; empty: not all of them are recorded."""
    found = tuple(ports[each.name] for each in wanted if each.name in ports) if ports else ()
    return found if len(found) == len(wanted) else ()


class _Taken:
    """Ports in use on one node."""

    __slots__ = ("counted", "owed", "range", "within")

    def __init__(self, ports: PortRange) -> None:
        self.counted: dict[int, int] = {}
        """Number of users by port, of any protocol."""
        self.owed = 0
        """Number of ports that are wanted and not chosen: for held room, or because none was left."""
        self.within = 0
        self.set_range(ports)

    def set_range(self, ports: PortRange) -> None:
        self.range = ports
        self.within = sum(map(self.inside, {*self.counted, *ports.taken}))

    def inside(self, number: int) -> bool:
        return self.range.first <= number <= self.range.last

    def free(self, number: int) -> bool:
        return number not in self.counted and number not in self.range.taken

    @property
    def left(self) -> int:
        return self.range.last - self.range.first + 1 - self.within - self.owed

    def count(self, number: int, sign: int) -> None:
        before = self.free(number)
        users = self.counted.get(number, 0) + sign
        if users:
            self.counted[number] = users
        else:
            del self.counted[number]
        if self.inside(number):
            self.within += int(before) - int(self.free(number))


class Ports(ReadOnly):
    """Ports in use. A chosen port number is not used by other instances of the node, in any protocol.

    The search for a free port starts at a hash of the instance name: equal input gives equal choices, an instance that
    returns to its node usually gets the same port, and a released port is not reused at once.
    """

    _nodes: dict[str, _Taken]
    _users: dict[HostPort, dict[str, int]]
    _strange: dict[int, set[str]]
    """Nodes by port that a program outside of mandor uses."""

    def users(self, port: HostPort) -> Collection[str]:
        """Return the nodes on which a port is in use."""
        users: Collection[str] = self._users.get(port, {}).keys()
        strange = self._strange.get(port.port)
        return {*users, *strange} if strange else users

    def strange(self, number: int) -> Collection[str]:
        """Return the nodes on which a program outside of mandor uses the port."""
        return frozenset(self._strange.get(number, ()))

    def free_after(self, node: str, fixed: Iterable[HostPort]) -> int:
        """Return the number of free ports of a node after these fixed ones are taken."""
        taken = self._nodes[node]
        more = {each.port for each in fixed if taken.inside(each.port) and taken.free(each.port)}
        return taken.left - len(more)

    def choose(self, node: str, key: Key, wanted: tuple[AnyPort, ...], fixed: Iterable[HostPort]) -> tuple[int, ...]:
        """Return one free port for each wanted one; empty: there are not enough."""
        taken = self._nodes.get(node)
        if taken is None or taken.left < len(wanted):
            return ()
        own = {each.port for each in fixed}
        found: list[int] = []
        for number in _from(taken.range, key):
            if taken.free(number) and number not in own:
                found.append(number)
                if len(found) == len(wanted):
                    return tuple(found)
        return ()


class MutablePorts(Writable, Ports):
    """The ports as the table counts them."""

    def __init__(self, left_changed: Callable[[str, int], None]) -> None:
        """`left_changed` is called with a node and the number of ports that it has left to choose from."""
        self._left_changed = left_changed
        self._nodes = {}
        self._users = {}
        self._strange = {}

    def set_node(self, node: str, ports: PortRange) -> None:
        taken = self._nodes.get(node)
        before = taken.range if taken is not None else PortRange()
        if taken is None:
            taken = self._nodes[node] = _Taken(ports)
        elif before != ports:
            taken.set_range(ports)
        for number in set(before.taken) - set(ports.taken):
            self._strange[number].discard(node)
            if not self._strange[number]:
                del self._strange[number]
        for number in ports.taken:
            self._strange.setdefault(number, set()).add(node)
        self._left_changed(node, taken.left)

    def remove_node(self, node: str) -> None:
        """Remove a node on which no instance is counted any more."""
        if node in self._nodes:
            self.set_node(node, PortRange())
            del self._nodes[node]

    def count(self, node: str, fixed: Iterable[HostPort], chosen: Iterable[HostPort], owed: int, sign: int) -> None:
        taken = self._nodes[node]
        for port in (*fixed, *chosen):
            users = self._users.setdefault(port, {})
            users[node] = users.get(node, 0) + sign
            if not users[node]:
                del users[node]
            if not users:
                del self._users[port]
            taken.count(port.port, sign)
        taken.owed += sign * owed
        self._left_changed(node, taken.left)


def _from(ports: PortRange, key: Key) -> Iterator[int]:
    """Yield all ports of the range, starting at a hash of the name."""
    digest = hashlib.blake2b(f"{key.namespace}/{key.name}".encode(), digest_size=8).digest()
    start = ports.first + int.from_bytes(digest, "big") % (ports.last - ports.first + 1)
    yield from range(start, ports.last + 1)
    yield from range(ports.first, start)
