"""The table: all nodes as columns, kept up to date change by change; room is counted the moment it is promised."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mandor.model.meta import Key
from mandor.model.node import Node, Taint
from mandor.placement.framework.ask import CPU, DISK, MEMORY, HostPort, Shape
from mandor.placement.framework.column import Column
from mandor.placement.framework.snapshot import Amounts, Engines, Health, Snapshot, node_facts

_FIRST_CAPACITY = 16


@dataclass(frozen=True, slots=True)
class Charge:
    """What one instance takes on its node."""

    node: str
    shape: Shape


class Table:
    """Nodes stand in dense slots; removing one moves the last into its place.

    Charges of nodes the table does not know (yet) are kept, and count as soon as the node appears.
    """

    def __init__(self, seed: str = "") -> None:
        self._seed = seed
        self._nodes: list[Node] = []
        self._slots: dict[str, int] = {}
        self._rows: dict[str, int] = {CPU: 0, MEMORY: 1, DISK: 2}
        self._allocatable = _amounts(len(self._rows), _FIRST_CAPACITY)
        self._used = _amounts(len(self._rows), _FIRST_CAPACITY)
        self._free = _amounts(len(self._rows), _FIRST_CAPACITY)
        self._counted = _amounts(2, _FIRST_CAPACITY)
        self._luck = np.zeros(_FIRST_CAPACITY, dtype=np.uint64)
        self._pools: Column[str] = Column(_FIRST_CAPACITY)
        self._health: Column[Health] = Column(_FIRST_CAPACITY)
        self._taints: Column[tuple[Taint, ...]] = Column(_FIRST_CAPACITY)
        self._engines: Column[Engines] = Column(_FIRST_CAPACITY)
        self._facts: dict[str, Column[tuple[str | None]]] = {}
        self._node_of: dict[Key, str] = {}
        self._charges: dict[str, dict[Key, Shape]] = {}
        """What is counted, by node."""
        self._ports: dict[HostPort, dict[str, int]] = {}
        self._snapshot: Snapshot | None = None
        self.version = 0
        """Grows with every change: the same version gives the same answers."""

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, name: str) -> Node | None:
        slot = self._slots.get(name)
        return None if slot is None else self._nodes[slot]

    def charge(self, key: Key) -> Charge | None:
        node = self._node_of.get(key)
        return None if node is None else Charge(node, self._charges[node][key])

    def free(self, node: str) -> dict[str, int]:
        slot = self._slots[node]
        return {name: int(self._free[row, slot]) for name, row in self._rows.items()}

    # Nodes.

    def set_node(self, node: Node) -> None:
        """Add a node, or take over what changed about it."""
        self.version += 1
        slot = self._slots.get(node.meta.name)
        if slot is None:
            slot = self._append(node)
        else:
            self._nodes[slot] = node
            self._pools.set(slot, node.spec.pool)
            self._health.set(slot, _health(node))
            self._taints.set(slot, node.spec.taints)
            self._engines.set(slot, Engines.of(node.status.engines))
            facts = node_facts(node) if self._facts else {}
            for name, column in self._facts.items():
                column.set(slot, (facts.get(name),))
        self._set_allocatable(slot, node)

    def remove_node(self, name: str) -> None:
        slot = self._slots.pop(name, None)
        if slot is None:
            return
        self.version += 1
        for shape in self._charges.get(name, {}).values():
            self._count_ports(name, shape, -1)
        last = len(self._nodes) - 1
        for array in (self._allocatable, self._used, self._free, self._counted):
            array[:, slot] = array[:, last]
            array[:, last] = 0
        self._luck[slot] = self._luck[last]
        columns: tuple[Column[Any], ...] = (self._pools, self._health, self._taints, self._engines)
        for column in (*columns, *self._facts.values()):
            column.remove(slot)
        moved = self._nodes.pop()
        if slot != last:
            self._nodes[slot] = moved
            self._slots[moved.meta.name] = slot
        self._snapshot = None

    def _append(self, node: Node) -> int:
        slot, name = len(self._nodes), node.meta.name
        if slot == self._free.shape[1]:
            self._grow()
        self._nodes.append(node)
        self._slots[name] = slot
        self._luck[slot] = self._hash(name)
        self._pools.append(node.spec.pool)
        self._health.append(_health(node))
        self._taints.append(node.spec.taints)
        self._engines.append(Engines.of(node.status.engines))
        facts = node_facts(node) if self._facts else {}
        for fact, column in self._facts.items():
            column.append((facts.get(fact),))
        for shape in self._charges.get(name, {}).values():
            self._count(slot, shape, 1)
            self._count_ports(name, shape, 1)
        self._snapshot = None
        return slot

    def _set_allocatable(self, slot: int, node: Node) -> None:
        room = node.allocatable
        self._allocatable[:, slot] = 0
        self._allocatable[:3, slot] = (room.cpu_milli, room.memory_bytes, room.disk_bytes)
        for kind, count in room.devices.items():
            # `_row` may replace the arrays, so the array is looked up after it.
            row = self._row(kind)
            self._allocatable[row, slot] = count
        self._free[:, slot] = self._allocatable[:, slot] - self._used[:, slot]

    # Instances.

    def set_charge(self, key: Key, node: str, shape: Shape) -> None:
        """Count an instance on a node, instead of wherever it was counted before."""
        before = self._node_of.get(key)
        if before is not None:
            if before == node and self._charges[node][key] is shape:
                return
            self.drop_charge(key)
        self.version += 1
        self._node_of[key] = node
        self._charges.setdefault(node, {})[key] = shape
        slot = self._slots.get(node)
        if slot is not None:
            self._count(slot, shape, 1)
            self._count_ports(node, shape, 1)

    def drop_charge(self, key: Key) -> bool:
        """True: there was one, and its room is free now."""
        node = self._node_of.pop(key, None)
        if node is None:
            return False
        self.version += 1
        shape = self._charges[node].pop(key)
        if not self._charges[node]:
            del self._charges[node]
        slot = self._slots.get(node)
        if slot is not None:
            self._count(slot, shape, -1)
            self._count_ports(node, shape, -1)
        return True

    def _count(self, slot: int, shape: Shape, sign: int) -> None:
        for resource, amount in shape.wanted:
            row = self._row(resource)
            self._used[row, slot] += sign * amount
            self._free[row, slot] -= sign * amount
        self._counted[0, slot] += sign * shape.counted[0]
        self._counted[1, slot] += sign * shape.counted[1]

    def _count_ports(self, node: str, shape: Shape, sign: int) -> None:
        for port in shape.host_ports:
            users = self._ports.setdefault(port, {})
            users[node] = users.get(node, 0) + sign
            if users[node] == 0:
                del users[node]
            if not users:
                del self._ports[port]

    # Reading.

    def snapshot(self) -> Snapshot:
        """A read-only window on the columns; it shows later changes, so it is asked for anew in each cycle."""
        if self._snapshot is None:
            count = len(self._nodes)
            self._snapshot = Snapshot(
                nodes=self._nodes,
                slots=self._slots,
                rows=self._rows,
                free=_window(self._free, count),
                allocatable=_window(self._allocatable, count),
                counted=_window(self._counted, count),
                luck=_window_of_luck(self._luck, count),
                pools=self._pools,
                health=self._health,
                taints=self._taints,
                engines=self._engines,
                fact=self._fact,
                port_users=self._port_users,
            )
        return self._snapshot

    def _fact(self, name: str) -> Column[tuple[str | None]]:
        column = self._facts.get(name)
        if column is None:
            column = Column(max(_FIRST_CAPACITY, len(self._nodes)))
            for node in self._nodes:
                column.append((node_facts(node).get(name),))
            self._facts[name] = column
        return column

    def _port_users(self, port: HostPort) -> Sequence[str]:
        return tuple(self._ports.get(port, ()))

    # Room in the arrays.

    def _row(self, resource: str) -> int:
        row = self._rows.get(resource)
        if row is None:
            row = len(self._rows)
            self._rows[resource] = row
            extra = _amounts(1, self._free.shape[1])
            self._allocatable = np.concatenate([self._allocatable, extra])
            self._used = np.concatenate([self._used, extra])
            self._free = np.concatenate([self._free, extra])
            self._snapshot = None
        return row

    def _grow(self) -> None:
        extra = self._free.shape[1]
        self._allocatable = _wider(self._allocatable, extra)
        self._used = _wider(self._used, extra)
        self._free = _wider(self._free, extra)
        self._counted = _wider(self._counted, extra)
        self._luck = np.concatenate([self._luck, np.zeros(extra, dtype=np.uint64)])

    def _hash(self, name: str) -> int:
        digest = hashlib.blake2b(f"{self._seed}/{name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big")


def _health(node: Node) -> Health:
    return Health(node.status.phase, node.spec.cordoned)


def _amounts(rows: int, columns: int) -> Amounts:
    return np.zeros((rows, columns), dtype=np.int64)


def _wider(array: Amounts, extra: int) -> Amounts:
    return np.concatenate([array, _amounts(array.shape[0], extra)], axis=1)


def _window(array: Amounts, count: int) -> Amounts:
    view = array[:, :count]
    view.flags.writeable = False
    return view


def _window_of_luck(array: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    view = array[:count]
    view.flags.writeable = False
    return view
