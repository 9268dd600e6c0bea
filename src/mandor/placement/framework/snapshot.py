"""Read-only view of all nodes as columns, for plugins."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from mandor.model.node import ENGINE_FACT, Capabilities, Node, NodePhase, Taint, engine_facts
from mandor.placement.framework.cached_columns import CachedColumns
from mandor.placement.framework.capacity_columns import CapacityColumns
from mandor.placement.framework.column import Column, Mask
from mandor.placement.framework.occupancy import Occupancy, TrialOccupancy
from mandor.placement.framework.ports import Ports
from mandor.placement.framework.quotas import Quotas
from mandor.placement.framework.reservations import Reservations
from mandor.placement.framework.resource_rows import AmountRows
from mandor.placement.framework.tie_break import TieBreaks
from mandor.placement.framework.topology_counts import TopologyCounts
from mandor.placement.framework.volumes import Volumes

Amounts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Health:
    """State that decides whether a node accepts new instances."""

    phase: NodePhase
    cordoned: bool
    pressed: tuple[str, ...] = ()
    """Resources under pressure."""
    drained: bool = False
    """Whether the node is drained and closed to daemons, too."""

    @classmethod
    def of(cls, node: Node) -> "Health":
        return cls(node.status.phase, node.closed, node.status.pressure, node.drain is not None)

    def open(self, *, daemon: bool = False) -> bool:
        closed = self.drained if daemon else self.cordoned
        return self.phase is NodePhase.READY and not closed


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a node as a comparable value."""

    items: tuple[tuple[str, Capabilities], ...]

    @classmethod
    def of(cls, engines: Mapping[str, Capabilities]) -> "Engines":
        return cls(tuple(sorted(engines.items(), key=lambda item: item[0])))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.items)


Images = tuple[tuple[str, int], ...]
"""Images of a node with their sizes in bytes."""
Numbers = NDArray[np.int64]
Wanted = tuple[tuple[str, int], ...]
"""Amounts by resource."""


class FreeAmounts(dict[str, int]):
    """Free amounts of one node by resource; 0 for a resource that the node does not have."""

    def __missing__(self, resource: str) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node and its free amounts, for `filter_node` and `score_node`."""

    node: Node
    free: Mapping[str, int]

    @property
    def name(self) -> str:
        return self.node.meta.name

    @property
    def facts(self) -> dict[str, str]:
        return node_facts(self.node)


def images_of(node: Node) -> Images:
    return tuple(sorted(node.status.images.items()))


def node_facts(node: Node) -> dict[str, str]:
    """Return the facts that rules can test: facts of the agent and of the engines, labels, and `node` and `pool`. Later
    ones override earlier ones."""
    found = {**node.status.facts, **engine_facts(node.status.engines), **node.meta.labels}
    return {**found, "node": node.meta.name, "pool": node.spec.pool}


def node_fact(node: Node, name: str) -> str | None:
    """Return one fact of a node, as in `node_facts`."""
    if name == "node":
        return node.meta.name
    if name == "pool":
        return node.spec.pool
    found = node.meta.labels.get(name)
    if found is None and name.startswith(ENGINE_FACT):
        found = engine_facts(node.status.engines).get(name)
    return node.status.facts.get(name) if found is None else found


def only_usage_differs(before: Node, after: Node) -> bool:
    """Return whether two versions of a node differ in nothing but the measured usage, which changes often."""
    return (
        before.spec == after.spec
        and before.meta.labels == after.meta.labels
        and structs.replace(before.status, usage=after.status.usage) == after.status
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All nodes as columns in the same order.

    A snapshot is a window on the table: valid for one cycle, and not to be stored. Everything with a public name is
    read-only. The fields with a leading underscore belong to the framework.
    """

    nodes: Sequence[Node]
    slots: Mapping[str, int]
    """Slot (column number) of each node by name."""
    rows: Mapping[str, int]
    """Row of each resource in `free` and `allocatable` by name."""
    stored_row: Callable[[str], int]
    """Returns the row of a resource in the arrays of `occupancy`, valid at nodes that have the resource."""
    own_resources: Callable[[int], Iterable[tuple[str, int]]]
    """Returns the resources of the node at a slot by name, with their stored rows."""
    free: AmountRows
    """`[resource, node]`: amounts that are not allocated."""
    allocatable: AmountRows
    counted: Amounts
    """`[cpu or memory, node]`: allocated amounts as scores count them."""
    order: Callable[[], TieBreaks]
    """Position of each node in a seeded random order; see `tie_break`."""
    listed: Callable[[], TieBreaks]
    """Position of each node in the order of names; the first name has the highest value."""
    pools: Column[str]
    health: Column[Health]
    taints: Column[tuple[Taint, ...]]
    engines: Column[Engines]
    fact: Callable[[str], Column[tuple[str | None]]]
    """Returns the column of a fact: a label, a fact of the agent, `node` or `pool`. Created at the first call."""
    ports: Ports
    """Host ports in use."""
    ports_left: Numbers
    """Number of free ports of each node to choose from."""
    topology: TopologyCounts
    """Numbers of placed instances by node and by domain."""
    images: Column[Images]
    usage: Amounts
    """`[cpu or memory, node]`: measured usage in the last report; -1: no report."""
    since_usage: Amounts
    """`[cpu or memory, node]`: `counted` at the time of that report."""
    instances: Numbers
    """Number of instances of each node."""
    machines: Numbers
    """Number of virtual machines of each node."""
    turns: Numbers
    """Sequence number of the last placement on each node; 0: none yet."""
    dedicated_to: Numbers
    """Number of the workload that the node is dedicated to; 0: none, -1: several."""
    anyone_dedicated: Callable[[], bool]
    """Returns whether any node is dedicated to a workload."""
    owner: Callable[[tuple[str, str]], int]
    """Returns the number of a workload in `dedicated_to`."""
    reservations: Reservations
    """Active reservations."""
    quotas: Quotas
    """Quotas of the namespaces and their use."""
    occupancy: Occupancy
    """The placed instances of each node."""
    wanted: Mapping[Wanted, int]
    """Requested amounts of the placed instances, with the number of instances of each."""
    volumes: Volumes
    """Volumes and the nodes that they are on."""
    _cached: CachedColumns
    """Cache of answers that depend on one node each."""
    _capacity_columns: CapacityColumns
    """Columns from which the standard resource scores are computed."""
    _trials: TrialOccupancy
    """Changes to the table that are undone at the end of a trial; plugins get them through `DryRun`."""

    def under_pressure(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of the named nodes that have resources under pressure."""
        return frozenset(
            name for name in names if (slot := self.slots.get(name)) is not None and self.health[slot].pressed
        )

    def __len__(self) -> int:
        return len(self.nodes)

    def views(self, among: Mask | None = None) -> Iterator[NodeView]:
        """Yield the nodes one by one."""
        for slot, node in enumerate(self.nodes):
            if among is None or among[slot]:
                yield self.view(slot, node)

    def view(self, slot: int, node: Node) -> NodeView:
        """Return one node."""
        names = (name for name, _ in self.own_resources(slot))
        return NodeView(node, FreeAmounts({name: int(self.free[self.rows[name], slot]) for name in names}))
