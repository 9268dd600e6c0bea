"""The allocations by node and by terms: stopping and held ones, priorities, and what disruption budgets allow."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Protocol

from mandor.model.meta import Key
from mandor.placement.allocation import Allocation, Trial
from mandor.placement.framework.identity import NO_IDENTITY, Identity
from mandor.placement.framework.occupancy import (
    SETTLED,
    AllocationTerms,
    GroupAllocations,
    PlacedInstance,
    PriorityUsage,
    StoppingUsage,
)
from mandor.placement.framework.read_only import ReadOnly, Writable
from mandor.placement.framework.request import Shape
from mandor.placement.framework.topology_counts import TopologyCounts
from mandor.placement.priority_levels import PriorityLevels

_new_tuple = tuple.__new__  # half the time of PlacedInstance(…), in a hot path
Group = tuple[str, str, str]
"""Namespace, workload, group."""


class AllocationTable(Protocol):
    """The table of the nodes, as far as the allocation state reads and changes it."""

    version: int

    @property
    def allocations(self) -> Mapping[Key, Allocation]: ...

    @property
    def in_trial(self) -> bool: ...

    def keys_on(self, node: str) -> Collection[Key]: ...

    def trial(self) -> AbstractContextManager[Trial]: ...

    def set_allocation(
        self, key: Key, node: str, shape: Shape, identity: Identity = ..., terms: AllocationTerms = ...
    ) -> None: ...

    def drop_allocation(self, key: Key) -> bool: ...

    def undo_by(self, step: Callable[[], None]) -> None: ...


class AllocationReader(ReadOnly):
    """The placed instances of all nodes and the disruption budgets of their groups, for reading."""

    _table: AllocationTable
    _topology: TopologyCounts
    _levels: PriorityLevels
    _stopping: list[tuple[float, str, Key]]
    """Stopping instances, sorted: end, node and key."""
    _alike: dict[Identity, dict[tuple[Shape, int], dict[str, int]]]
    """Number of settled instances that are not spared, by identity, by shape and priority, and by node."""
    _held: dict[Key, int]
    """Priorities of the instances for which room is held."""
    _settled: dict[int, int]
    """Number of settled instances by priority."""
    _allowed: dict[Group, int]
    """Number of further instances of a group that may be disrupted."""

    def placed_instances(self, node: str) -> list[PlacedInstance]:
        """The most important first."""
        return sorted(map(self._placed, self._table.keys_on(node)), key=_importance)

    def stopping(
        self, *, by: float = inf, among: Container[str] | None = None, most: int | None = None
    ) -> list[tuple[str, PlacedInstance]]:
        if not self._stopping:
            return []
        going = self._stopping[: bisect_right(self._stopping, by, key=_until)]
        if among is not None:
            going = [each for each in going if each[1] in among]
        return [(node, self._placed(key)) for _, node, key in going[:most]]

    def going(self) -> StoppingUsage:
        return self._levels.going()

    def held(self) -> list[tuple[str, PlacedInstance]]:
        return self._named(self._held) if self._held else []

    def lowest_held(self) -> int | None:
        return min(self._held.values()) if self._held else None

    def lowest(self) -> int | None:
        return min(self._settled, default=None)

    def levels(self, below: int) -> list[PriorityUsage]:
        return self._levels.below(below)

    def allowed(self, identity: Identity) -> int | None:
        return self._allowed.get((identity.namespace, identity.workload, identity.group)) if self._allowed else None

    def tight(self) -> list[GroupAllocations]:
        return [
            GroupAllocations(shape, priority, MappingProxyType(counts))
            for group in sorted(group for group, count in self._allowed.items() if count <= 0)
            for identity in self._topology.of_group(*group)
            for (shape, priority), counts in self._alike.get(identity, {}).items()
        ]

    def _placed(self, key: Key) -> PlacedInstance:
        allocation = self._table.allocations[key]
        return _new_tuple(PlacedInstance, (key, allocation.shape, allocation.identity, allocation.terms))

    def _named(self, keys: Collection[Key]) -> list[tuple[str, PlacedInstance]]:
        return [(self._table.allocations[key].node, self._placed(key)) for key in sorted(keys)]


class AllocationState(Writable, AllocationReader):
    """The placed instances as the table counts them."""

    def __init__(self, table: AllocationTable, levels: PriorityLevels, topology: TopologyCounts) -> None:
        self._table = table
        self._topology = topology
        self._levels = levels
        self._stopping = []
        self._alike = {}
        self._held = {}
        self._settled = {}
        self._allowed = {}

    @property
    def in_trial(self) -> bool:
        return self._table.in_trial

    def trial(self) -> AbstractContextManager[Trial]:
        return self._table.trial()

    def set_allocation(
        self, key: Key, node: str, shape: Shape, identity: Identity = NO_IDENTITY, terms: AllocationTerms = SETTLED
    ) -> None:
        self._table.set_allocation(key, node, shape, identity, terms)

    def drop_allocation(self, key: Key) -> bool:
        return self._table.drop_allocation(key)

    def allow(self, group: Group, count: int | None) -> None:
        """Set how many more instances of a group may be disrupted; None: any number."""
        if self._allowed.get(group) == count:
            return
        self._table.version += 1
        if count is None:
            del self._allowed[group]
        else:
            self._allowed[group] = count

    def spend(self, identity: Identity, times: int = 1) -> None:
        """Count disruptions of a group, within a trial."""
        group = (identity.namespace, identity.workload, identity.group)
        allowed = self._allowed.get(group)
        if allowed is not None:
            self.allow(group, allowed - times)
            self._table.undo_by(partial(self.allow, group, allowed))

    def come(self, key: Key, node: str, terms: AllocationTerms, count: int = 1) -> None:
        """Add an allocation; `count`: number of equal settled ones."""
        if terms.held:
            self._held[key] = terms.rank.priority
        elif terms.until is not None:
            insort(self._stopping, (terms.until, node, key))
        else:
            priority = terms.rank.priority
            self._settled[priority] = self._settled.get(priority, 0) + count

    def leave(self, key: Key, node: str, terms: AllocationTerms) -> None:
        if terms.held:
            self._held.pop(key, None)
        elif terms.until is not None:
            del self._stopping[bisect_left(self._stopping, (terms.until, node, key))]
        else:
            priority = terms.rank.priority
            left = self._settled[priority] - 1
            if left:
                self._settled[priority] = left
            else:
                del self._settled[priority]

    def count(self, nodes: Sequence[str], shape: Shape, identity: Identity, terms: AllocationTerms, sign: int) -> None:
        """One more, or less, on each of these nodes, which the table knows."""
        rank = terms.rank
        if terms.until is not None or terms.held or rank.spared:
            return
        kinds = self._alike.get(identity)
        if kinds is None:
            kinds = self._alike[identity] = {}
        counts = kinds.get((shape, rank.priority))
        if counts is None:
            counts = kinds[shape, rank.priority] = {}
        for node in nodes:
            now = counts.get(node, 0) + sign
            if now:
                counts[node] = now
            else:
                del counts[node]
        if not counts:
            del kinds[shape, rank.priority]
            if not kinds:
                del self._alike[identity]


def _until(stopping: tuple[float, str, Key]) -> float:
    return stopping[0]


def _importance(placed_instance: PlacedInstance) -> tuple[int, float, Key]:
    return placed_instance.importance
