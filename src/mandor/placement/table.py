"""The table: all nodes as columns, updated change by change; an instance counts as soon as it is assigned."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from mandor.model.meta import Key
from mandor.model.node import Node, Taint
from mandor.placement.allocation import Allocation, Trial
from mandor.placement.allocation_state import AllocationReader, AllocationState
from mandor.placement.arrays import move_amounts, read_only_columns, widened, zeros
from mandor.placement.framework.cached_columns import CachedColumns
from mandor.placement.framework.capacity_columns import CapacityColumns
from mandor.placement.framework.column import Column, MutableColumn
from mandor.placement.framework.identity import NO_IDENTITY, Identity
from mandor.placement.framework.occupancy import SETTLED, AllocationTerms
from mandor.placement.framework.points import SCORE_MOST
from mandor.placement.framework.ports import MutablePorts, Ports
from mandor.placement.framework.quotas import MutableQuotas, Quota, Quotas
from mandor.placement.framework.read_only import read_only
from mandor.placement.framework.request import CPU, DISK, MEMORY, Shape
from mandor.placement.framework.reservations import MutableReservations, Reservations
from mandor.placement.framework.resource_rows import OWN_MOST, AmountRows, MutableResourceRows, ResourceRows
from mandor.placement.framework.snapshot import (
    Amounts,
    Engines,
    Health,
    Images,
    Snapshot,
    Wanted,
    images_of,
    node_fact,
    only_usage_differs,
)
from mandor.placement.framework.tie_break import TieBreakOrder
from mandor.placement.framework.topology_counts import MutableTopologyCounts, TopologyCounts
from mandor.placement.framework.volumes import KnownVolume, MutableVolumes, Volumes, wanted_volumes
from mandor.placement.priority_levels import PriorityLevels
from mandor.placement.read_only import ReadOnlyList

_FIRST_CAPACITY = 16
_NO_OWNER = -2
_NOBODY: frozenset[Key] = frozenset()
_TURN, _DEDICATED, _PORTS = range(3)
_MEMORY_FIRST = [1, 0]
"""Order of the first rows: spare memory before spare CPU, as in `CapacityColumns`."""
_COUNTED, _INSTANCES, _MACHINES, _FREE = slice(4, 6), 6, 7, 8
"""Rows of the sums; from `_FREE` on, one for each resource."""
_SPARE_MOST = 2**53
"""Upper limit of a spare amount, larger than any supported node."""
_STEPS_MOST = 4096


class Table:
    """Nodes are in dense slots; removing one moves the last one to its slot.

    Allocations on unknown nodes are kept, and count as soon as the node appears.
    """

    def __init__(self, seed: str = "", *, own_rows: int = OWN_MOST) -> None:
        """`own_rows`: device kinds with a row of their own in the arrays; further kinds share rows."""
        self._nodes: list[Node] = []
        self._slots: dict[str, int] = {}
        self._rows = MutableResourceRows(_FIRST_CAPACITY, own_most=own_rows)
        self._allocatable = zeros(self._rows.height, _FIRST_CAPACITY)
        self._sums = zeros(_FREE + self._rows.height, _FIRST_CAPACITY)
        """All sums that an allocation changes, so that it is one vector addition. The first rows are those of
        `CapacityColumns` as integers, to avoid rounding errors."""
        self._capacity_columns = CapacityColumns(_FIRST_CAPACITY)
        self._steps: dict[Shape, Amounts] = {}
        """Vectors by shape that one allocation adds to the sums of its node."""
        self._usage = zeros(2, _FIRST_CAPACITY)
        self._since_usage = zeros(2, _FIRST_CAPACITY)
        self._numbers = zeros(3, _FIRST_CAPACITY)
        self._tie_break_order = TieBreakOrder(seed)
        self._pools: MutableColumn[str] = MutableColumn(_FIRST_CAPACITY)
        self._health: MutableColumn[Health] = MutableColumn(_FIRST_CAPACITY)
        self._taints: MutableColumn[tuple[Taint, ...]] = MutableColumn(_FIRST_CAPACITY)
        self._engines: MutableColumn[Engines] = MutableColumn(_FIRST_CAPACITY)
        self._images: MutableColumn[Images] = MutableColumn(_FIRST_CAPACITY)
        self._facts: dict[str, MutableColumn[tuple[str | None]]] = {}
        self._fact_readers: dict[str, Column[tuple[str | None]]] = {}
        self._allocations: dict[Key, Allocation] = {}
        self._by_node: dict[str, set[Key]] = {}
        self._ports = MutablePorts(self._set_ports_left)
        self._topology = MutableTopologyCounts(self._slots, self._fact)
        self._volumes = MutableVolumes(self._count_disk)
        self._cached = CachedColumns()
        self._levels = PriorityLevels(self._rows, self.__len__, _FIRST_CAPACITY)
        self.allocation_state = AllocationState(self, self._levels, self._topology)
        self._owners: dict[tuple[str, str], int] = {}
        self._dedicated: dict[str, dict[int, int]] = {}
        self._quotas = MutableQuotas()
        self.reservations = MutableReservations(self._quotas_changed)
        self._wanted: dict[Wanted, int] = {}
        self._turn = 0
        self._undo: list[Callable[[], None]] | None = None
        """Functions that undo the changes of the current trial, in the order of the changes; None: no trial."""
        self._snapshot: Snapshot | None = None
        self.version = 0
        """Increases with every change; decisions on the same version are equal."""

    def __len__(self) -> int:
        return len(self._nodes)

    def node(self, name: str) -> Node | None:
        slot = self._slots.get(name)
        return None if slot is None else self._nodes[slot]

    def allocation(self, key: Key) -> Allocation | None:
        return self._allocations.get(key)

    @property
    def allocations(self) -> Mapping[Key, Allocation]:
        return self._allocations

    @property
    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def keys_on(self, node: str) -> Set[Key]:
        """Return the keys of the instances counted on a node."""
        return self._by_node.get(node, _NOBODY)

    def free(self, node: str) -> dict[str, int]:
        slot = self._slots[node]
        return {name: int(self._sums[_FREE + row, slot]) for name, row in self._rows.of_node(slot)}

    # Nodes.

    def set_node(self, node: Node) -> None:
        """Add or update a node."""
        self.version += 1
        slot = self._slots.get(node.meta.name)
        if slot is None or not only_usage_differs(self._nodes[slot], node):
            self._cached.attributes += 1
            if slot is None:
                slot = self._append(node)
            else:
                self._change(slot, self._nodes[slot], node)
        self._nodes[slot] = node
        self._set_usage(slot, node)
        self._cached.changed(slot)

    def _change(self, slot: int, before: Node, node: Node) -> None:
        old, new = before.status, node.status
        self._pools.set(slot, node.spec.pool)
        self._health.set(slot, Health.of(node))
        self._taints.set(slot, node.taints)
        if new.engines != old.engines:
            self._engines.set(slot, Engines.of(new.engines))
        if new.images != old.images:
            self._images.set(slot, images_of(node))
        for name, column in self._facts.items():
            column.set(slot, (node_fact(node, name),))
        if new.ports != old.ports:
            self._ports.set_node(node.meta.name, new.ports)
        if new.capacity != old.capacity or node.spec.reserved != before.spec.reserved:
            self._set_allocatable(slot, node)

    def set_volume(self, key: Key, known: KnownVolume | None) -> bool:
        """Add, update or remove a volume; return whether that changed anything."""
        if not self._volumes.set(key, known):
            return False
        self.version += 1
        return True

    def remove_node(self, name: str) -> None:
        slot = self._slots.get(name)
        if slot is None:
            return
        self.version += 1
        for key in self._by_node.get(name, ()):
            self._count_by_name(self._allocations[key], -1)
        self._ports.remove_node(name)
        del self._slots[name]
        last = len(self._nodes) - 1
        for array in (self._allocatable, self._sums, self._usage, self._since_usage, self._numbers):
            array[:, slot] = array[:, last]
            array[:, last] = 0
        self._rows.move(last, slot)
        self._capacity_columns.move(last, slot)
        self._levels.move(last, slot)
        self._capacity_columns.forget(name)
        self._tie_break_order.remove(slot)
        columns: tuple[MutableColumn[Any], ...] = (self._pools, self._health, self._taints, self._engines, self._images)
        for column in (*columns, *self._facts.values()):
            column.remove(slot)
        moved = self._nodes.pop()
        if slot != last:
            self._nodes[slot] = moved
            self._slots[moved.meta.name] = slot
        self._renumbered()

    def _append(self, node: Node) -> int:
        slot, name = len(self._nodes), node.meta.name
        if slot == self._sums.shape[1]:
            self._grow()
        self._nodes.append(node)
        self._slots[name] = slot
        self._tie_break_order.append(name)
        self._pools.append(node.spec.pool)
        self._health.append(Health.of(node))
        self._taints.append(node.taints)
        self._engines.append(Engines.of(node.status.engines))
        self._images.append(images_of(node))
        self._usage[:, slot] = -1
        for fact, column in self._facts.items():
            column.append((node_fact(node, fact),))
        self._renumbered()
        self._ports.set_node(name, node.status.ports)
        for key in self._by_node.get(name, ()):
            self._count(slot, self._allocations[key], 1)
            self._count_by_name(self._allocations[key], 1)
        for size in self._volumes.sizes_on(name):
            self._count_disk(name, size)
        self._set_allocatable(slot, node)
        return slot

    def _renumbered(self) -> None:
        self._topology.renumbered()
        self._cached.renumbered()
        self._snapshot = None

    def _set_allocatable(self, slot: int, node: Node) -> None:
        room = node.allocatable
        self._claim(room.devices, slot)  # this may replace the arrays
        now = zeros(self._rows.height, 1)[:, 0]
        now[:3] = (room.cpu_milli, room.memory_bytes, room.disk_bytes)
        for kind, count in room.devices.items():
            now[self._rows.stored(kind)] = count
        more = now - self._allocatable[:, slot]
        self._allocatable[:, slot], self._sums[_FREE:, slot] = now, self._sums[_FREE:, slot] + more
        self._rows.release(slot, (now == 0) & (self._sums[_FREE:, slot] == 0))
        self._sums[:2, slot] += SCORE_MOST * more[_MEMORY_FIRST]
        self._capacity_columns.set_capacity(slot, node.meta.name, room.cpu_milli, room.memory_bytes)
        self._capacity_columns.set_values(slot, self._sums[:, slot])

    def _set_usage(self, slot: int, node: Node) -> None:
        """Set the measured usage; later allocations are added to it, earlier ones are included in it."""
        usage = node.status.usage
        measured = (-1, -1) if usage is None else (usage.cpu_milli, usage.memory_bytes)
        if (int(self._usage[0, slot]), int(self._usage[1, slot])) != measured:
            self._usage[:, slot] = measured
            self._since_usage[:, slot] = self._sums[_COUNTED, slot]

    # Instances.

    def set_allocation(
        self,
        key: Key,
        node: str,
        shape: Shape,
        identity: Identity = NO_IDENTITY,
        terms: AllocationTerms = SETTLED,
        ports: tuple[int, ...] = (),
    ) -> None:
        """Count an instance on a node and on no other. `ports`: the chosen ports; without them the instance keeps its
        current ones there, or gets free ones."""
        before = self._allocations.get(key)
        if before is not None:
            same = before.node == node and before.shape is shape
            if same and before.identity == identity and before.terms == terms and (not ports or ports == before.ports):
                return
            if same and not ports:
                ports = before.ports
            self.drop_allocation(key)
        self.version += 1
        if shape.any_ports and not ports and not terms.held:
            ports = self._ports.choose(node, key, shape.any_ports, shape.host_ports)
        allocation = Allocation(node, shape, identity, terms, ports)
        self._allocations[key] = allocation
        self.allocation_state.come(key, node, terms)
        there = self._by_node.get(node)
        if there is None:
            self._by_node[node] = {key}
        else:
            there.add(key)
        self._count_everywhere(key.namespace, shape, identity, 1)
        if shape.volumes:
            self._count_volumes(key, allocation, 1)
        slot = self._slots.get(node)
        if self._undo is not None:
            turn = 0 if slot is None else int(self._numbers[_TURN, slot])
            self._undo.append(partial(self._take_back, key, slot, turn, self._turn))
        if slot is not None:
            self._count(slot, allocation, 1)
            self._count_by_name(allocation, 1)
            if before is None or before.node != node or before.terms.held != terms.held:
                self._turn += 1
                self._numbers[_TURN, slot] = self._turn

    def set_allocations(
        self,
        slots: Sequence[int],
        keys: Sequence[Key],
        shape: Shape,
        identity: Identity,
        terms: Sequence[AllocationTerms],
    ) -> None:
        """Count new settled instances of one namespace and rank, in order; the same as `set_allocation` for each.

        The shape may take nothing but resources (`Shape.takes_room_alone`)."""
        assert self._undo is None and shape.takes_room_alone(identity)  # noqa: PT018
        self.version += len(slots)
        names = [self._nodes[slot].meta.name for slot in slots]
        allocations, by_node = self._allocations, self._by_node
        for key, name, its_terms in zip(keys, names, terms, strict=True):
            allocations[key] = Allocation(name, shape, identity, its_terms)
            there = by_node.get(name)
            if there is None:
                by_node[name] = {key}
            else:
                there.add(key)
        self.allocation_state.come(keys[0], names[0], terms[0], len(keys))
        self.allocation_state.count(names, shape, identity, terms[0], 1)
        self._count_everywhere(keys[0].namespace, shape, identity, len(keys))
        self._topology.add_all(names, identity)
        self._count_all(slots, shape, terms[0])

    def _count_all(self, slots: Sequence[int], shape: Shape, terms: AllocationTerms) -> None:
        times: dict[int, int] = {}
        for slot in slots:
            times[slot] = times.get(slot, 0) + 1
        for slot in times if shape.devices else ():
            self._claim(shape.devices, slot)
        step = self._steps.get(shape)
        if step is None:
            step = self._step(shape)
        at, counts = list(times), list(times.values())
        sums = self._sums[:, at] + np.multiply.outer(step, counts)
        self._sums[:, at] = sums
        self._capacity_columns.set_all_values(at, sums)
        self._levels.come_all(at, counts, shape, terms)
        self._cached.changed_all(slots)
        turn, self._turn = self._turn, self._turn + len(slots)
        last = {slot: turn + number for number, slot in enumerate(slots, 1)}
        self._numbers[_TURN, list(last)] = list(last.values())

    def set_quota(self, namespace: str, quota: Quota) -> None:
        self._quotas_changed()
        self._quotas.set(namespace, quota)

    def drop_quota(self, namespace: str, name: str) -> None:
        self._quotas_changed()
        self._quotas.drop(namespace, name)

    def _quotas_changed(self) -> None:
        self.version += 1
        self._cached.attributes += 1  # plugins that skipped may take part now

    def drop_allocation(self, key: Key) -> bool:
        """Free the allocation of an instance; return whether there was one."""
        allocation = self._allocations.pop(key, None)
        if allocation is None:
            return False
        if self._undo is not None:
            self._undo.append(partial(self._put_back, key, allocation, self._turn))
        self.version += 1
        self.allocation_state.leave(key, allocation.node, allocation.terms)
        keys = self._by_node[allocation.node]
        keys.discard(key)
        if not keys:
            del self._by_node[allocation.node]
        self._count_everywhere(key.namespace, allocation.shape, allocation.identity, -1)
        if allocation.shape.volumes:
            self._count_volumes(key, allocation, -1)
        slot = self._slots.get(allocation.node)
        if slot is not None:
            self._count(slot, allocation, -1)
            self._count_by_name(allocation, -1)
        return True

    @contextmanager
    def trial(self) -> Iterator[Trial]:
        """Undo the allocations made in this context at its end, unless they are kept. Trials can be nested.

        Nodes must not change meanwhile, and no other task may run: every reader of the table sees the trial.
        """
        outer, version = self._undo, self.version
        steps: list[Callable[[], None]] = []
        self._undo = steps
        trial = Trial()
        try:
            yield trial
        except BaseException:
            trial.kept = False
            raise
        finally:
            self._undo = outer
            if trial.kept:
                if outer is not None:
                    outer += steps
            else:
                self._undo = None
                while steps:
                    steps.pop()()
                self._undo, self.version = outer, version

    @property
    def in_trial(self) -> bool:
        """Whether changes are undone at the end of a trial."""
        return self._undo is not None

    def undo_by(self, step: Callable[[], None]) -> None:
        """Add a function that is called at the end of the trial, to undo another change."""
        assert self._undo is not None, "only within a trial"
        self._undo.append(step)

    def _take_back(self, key: Key, slot: int | None, turn_of_node: int, turn: int) -> None:
        self.drop_allocation(key)
        self._turn = turn
        if slot is not None:
            self._numbers[_TURN, slot] = turn_of_node

    def _put_back(self, key: Key, allocation: Allocation, turn: int) -> None:
        slot = self._slots.get(allocation.node)
        turn_of_node = 0 if slot is None else int(self._numbers[_TURN, slot])
        self.set_allocation(key, *msgspec.structs.astuple(allocation))
        self._turn = turn
        if slot is not None:
            self._numbers[_TURN, slot] = turn_of_node

    def _count(self, slot: int, allocation: Allocation, sign: int) -> None:
        shape = allocation.shape
        if shape.devices:
            self._claim(shape.devices, slot)
        step = self._steps.get(shape)
        if step is None:
            step = self._step(shape)
        sums = self._sums[:, slot]
        if sign > 0:
            np.add(sums, step, out=sums)
            self._levels.come(slot, shape, allocation.terms)
        else:
            np.subtract(sums, step, out=sums)
            self._levels.leave(slot, shape, allocation.terms)
        self._capacity_columns.set_values(slot, sums)
        self._cached.changed(slot)

    def _step(self, shape: Shape) -> Amounts:
        """Return the vector that one allocation of a shape adds to the sums."""
        wanted = dict(shape.wanted)
        (cpu, memory), most = shape.counted, _SPARE_MOST
        spare = -min(SCORE_MOST * memory, most), -min(SCORE_MOST * cpu, most)
        used = wanted.get(CPU, 0), wanted.get(MEMORY, 0)
        free = [0] * self._rows.height
        for resource, amount in shape.wanted:
            free[self._rows.stored(resource)] = -amount
        step = np.array([*spare, *used, cpu, memory, shape.heads, shape.machine * shape.heads, *free], dtype=np.int64)
        if len(self._steps) >= _STEPS_MOST:
            self._steps.clear()
        self._steps[shape] = step
        return step

    def _count_by_name(self, allocation: Allocation, sign: int) -> None:
        """Update the counts that are kept by the name of the node."""
        shape = allocation.shape
        if shape.host_ports or shape.any_ports:
            owed = len(shape.any_ports) - len(allocation.ports)
            self._ports.count(allocation.node, shape.host_ports, allocation.chosen, owed, sign)
        self._topology.add(allocation.node, shape, allocation.identity, sign)
        self.allocation_state.count((allocation.node,), shape, allocation.identity, allocation.terms, sign)
        if shape.dedicated:
            self._count_dedicated(allocation, sign)

    def _count_dedicated(self, allocation: Allocation, sign: int) -> None:
        owner = self._owners.setdefault(allocation.identity.owner, len(self._owners) + 1)
        owners = self._dedicated.setdefault(allocation.node, {})
        owners[owner] = owners.get(owner, 0) + sign
        if not owners[owner]:
            del owners[owner]
        self._numbers[_DEDICATED, self._slots[allocation.node]] = next(iter(owners), 0) if len(owners) < 2 else -1
        if not owners:
            del self._dedicated[allocation.node]
        if not self._dedicated:
            self._owners.clear()

    def _count_volumes(self, key: Key, allocation: Allocation, sign: int) -> None:
        for wanted in wanted_volumes(allocation.shape.volumes, key, allocation.identity):
            self._volumes.use(wanted, allocation.node, sign)

    def _count_disk(self, node: str, size: int) -> None:
        slot = self._slots.get(node)
        if slot is not None and size:
            self._sums[_FREE + self._rows.stored(DISK), slot] -= size
            self._cached.changed(slot)

    def _count_everywhere(self, namespace: str, shape: Shape, identity: Identity, sign: int) -> None:
        self._quotas.count(namespace, shape, identity, sign)
        count = self._wanted.get(shape.wanted, 0) + sign
        if count:
            self._wanted[shape.wanted] = count
        else:
            del self._wanted[shape.wanted]

    def _set_ports_left(self, node: str, left: int) -> None:
        self._numbers[_PORTS, self._slots[node]] = left

    # Reading.

    def snapshot(self) -> Snapshot:
        """Return a read-only view of the columns; it shows later changes, so each cycle gets a new one."""
        if self._snapshot is None:
            count, rows = len(self._nodes), read_only(ResourceRows, self._rows)
            self._capacity_columns.show(count)
            self._snapshot = Snapshot(
                nodes=ReadOnlyList(self._nodes),
                slots=MappingProxyType(self._slots),
                rows=self._rows.numbers,
                stored_row=self._rows.stored,
                own_resources=self._rows.of_node,
                free=AmountRows(read_only_columns(self._sums, count)[_FREE:], rows),
                allocatable=AmountRows(read_only_columns(self._allocatable, count), rows),
                counted=read_only_columns(self._sums, count)[_COUNTED],
                order=self._tie_break_order.drawn,
                listed=self._tie_break_order.listed,
                pools=read_only(Column, self._pools),
                health=read_only(Column, self._health),
                taints=read_only(Column, self._taints),
                engines=read_only(Column, self._engines),
                fact=self._fact,
                ports=read_only(Ports, self._ports),
                ports_left=read_only_columns(self._numbers, count)[_PORTS],
                topology=read_only(TopologyCounts, self._topology),
                images=read_only(Column, self._images),
                usage=read_only_columns(self._usage, count),
                since_usage=read_only_columns(self._since_usage, count),
                instances=read_only_columns(self._sums, count)[_INSTANCES],
                machines=read_only_columns(self._sums, count)[_MACHINES],
                turns=read_only_columns(self._numbers, count)[_TURN],
                dedicated_to=read_only_columns(self._numbers, count)[_DEDICATED],
                anyone_dedicated=lambda: bool(self._dedicated),
                owner=lambda owner: self._owners.get(owner, _NO_OWNER),
                quotas=read_only(Quotas, self._quotas),
                reservations=read_only(Reservations, self.reservations),
                occupancy=read_only(AllocationReader, self.allocation_state),
                wanted=MappingProxyType(self._wanted),
                volumes=read_only(Volumes, self._volumes),
                _cached=self._cached,
                _capacity_columns=self._capacity_columns,
                _trials=self.allocation_state,
            )
        return self._snapshot

    def _fact(self, name: str) -> Column[tuple[str | None]]:
        found = self._fact_readers.get(name)
        if found is None:
            column = self._facts[name] = MutableColumn(max(_FIRST_CAPACITY, len(self._nodes)))
            for node in self._nodes:
                column.append((node_fact(node, name),))
            found = self._fact_readers[name] = read_only(Column, column)
        return found

    # Growth of the arrays.

    def _claim(self, kinds: Iterable[str], slot: int) -> None:
        """Prepare the rows in which device kinds are counted at a slot; this may replace the arrays."""
        for kind in kinds:
            moved = self._rows.claim(kind, slot)
            if self._rows.height > len(self._allocatable):
                extra = zeros(1, self._sums.shape[1])
                self._allocatable = np.concatenate([self._allocatable, extra])
                self._sums = np.concatenate([self._sums, extra])
                self._levels.add_row()
                self._steps.clear()
                self._snapshot = None
            if moved is not None:
                move_amounts(self._allocatable, *moved)
                move_amounts(self._sums[_FREE:], *moved)
                self._levels.move_row(*moved)
                self._steps.clear()

    def _grow(self) -> None:
        extra = self._sums.shape[1]
        self._rows.widen(extra)
        self._allocatable = widened(self._allocatable, extra)
        self._sums = widened(self._sums, extra)
        self._capacity_columns.widen(extra)
        self._levels.widen(extra)
        self._usage = widened(self._usage, extra)
        self._since_usage = widened(self._since_usage, extra)
        self._numbers = widened(self._numbers, extra)
