"""All nodes as columns, read-only: what a plugin looks at."""

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
from mandor.placement.framework.tie_break import TieBreaks
from mandor.placement.framework.topology_counts import TopologyCounts
from mandor.placement.framework.volumes import Volumes

Amounts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Health:
    """What decides whether a node takes anything new."""

    phase: NodePhase
    cordoned: bool
    pressed: tuple[str, ...] = ()
    """What it is short of."""
    drained: bool = False
    """It is to be empty: closed to daemons, too."""

    @classmethod
    def of(cls, node: Node) -> "Health":
        return cls(node.status.phase, node.closed, node.status.pressure, node.drain is not None)

    def open(self, *, daemon: bool = False) -> bool:
        closed = self.drained if daemon else self.cordoned
        return self.phase is NodePhase.READY and not closed


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a node, as a value that can be compared."""

    items: tuple[tuple[str, Capabilities], ...]

    @classmethod
    def of(cls, engines: Mapping[str, Capabilities]) -> "Engines":
        return cls(tuple(sorted(engines.items(), key=lambda item: item[0])))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.items)


Images = tuple[tuple[str, int], ...]
"""The images a node has, with their sizes in bytes."""
Numbers = NDArray[np.int64]
Wanted = tuple[tuple[str, int], ...]
"""Amounts by resource."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node, for plugins written in the plain form."""

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
    """What rules can speak of: what the agent found, what the engines can do, labels over it, and the node's own name
    and pool over all."""
    found = {**node.status.facts, **engine_facts(node.status.engines), **node.meta.labels}
    return {**found, "node": node.meta.name, "pool": node.spec.pool}


def node_fact(node: Node, name: str) -> str | None:
    """One of them, without making the others."""
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
    """Columns over the same nodes in the same order; arrays cannot be written to.

    It is a window on the table: good for one cycle, never kept. Everything with a public name is read-only. The fields
    with a leading underscore belong to the framework.
    """

    nodes: Sequence[Node]
    slots: Mapping[str, int]
    """Where a node stands, by name."""
    rows: Mapping[str, int]
    """Where a resource stands in `free` and `allocatable`, by name."""
    free: Amounts
    """`[resource, node]`: what nobody has reserved."""
    allocatable: Amounts
    counted: Amounts
    """`[cpu or memory, node]`: what scores count as taken."""
    order: Callable[[], TieBreaks]
    """The nodes in an order that was drawn, by their names and a seed: breaks ties, see `luck`."""
    listed: Callable[[], TieBreaks]
    """The nodes in the order of their names: the first is the highest."""
    pools: Column[str]
    health: Column[Health]
    taints: Column[tuple[Taint, ...]]
    engines: Column[Engines]
    fact: Callable[[str], Column[tuple[str | None]]]
    """The column of a fact (a label, what the agent found, `node`, `pool`), made when first asked for."""
    ports: Ports
    """Which ports of the nodes are taken."""
    ports_left: Numbers
    """How many ports each node has left to choose from."""
    topology: TopologyCounts
    """Who stands where."""
    images: Column[Images]
    usage: Amounts
    """`[cpu or memory, node]`: what is really used, as the node last said; -1: it did not."""
    since_usage: Amounts
    """`[cpu or memory, node]`: what was counted as taken when the node said so."""
    instances: Numbers
    """How many are on each node."""
    machines: Numbers
    """How many of these are virtual machines."""
    turns: Numbers
    """When each node was last given something, as a number that only grows; 0: never."""
    dedicated_to: Numbers
    """The number of the workload that has the node for itself; 0: nobody, -1: several do."""
    anyone_dedicated: Callable[[], bool]
    """Does any workload have a node for itself?"""
    owner: Callable[[tuple[str, str]], int]
    """The number of a workload in `dedicated_to`."""
    reservations: Reservations
    """Room that is held for certain work."""
    quotas: Quotas
    """What the instances of a namespace take, and what they may take."""
    occupancy: Occupancy
    """The placed instances of each node."""
    wanted: Mapping[Wanted, int]
    """What has been asked for, and how many that is placed asks for the same."""
    volumes: Volumes
    """Which there are, and where each is."""
    _cached: CachedColumns
    """Answers about each node by itself, which need not be computed again for nodes that did not change."""
    _capacity_columns: CapacityColumns
    """Columns from which the usual scores of room are computed."""
    _trials: TrialOccupancy
    """Changes to the table that are undone at the end of a trial; plugins get them through `DryRun`."""

    def pressed(self, names: Iterable[str]) -> frozenset[str]:
        """Of these, the nodes that are short of something."""
        return frozenset(
            name for name in names if (slot := self.slots.get(name)) is not None and self.health[slot].pressed
        )

    def __len__(self) -> int:
        return len(self.nodes)

    def views(self, among: Mask | None = None) -> Iterator[NodeView]:
        """The nodes one by one."""
        for slot, node in enumerate(self.nodes):
            if among is None or among[slot]:
                yield NodeView(node, {name: int(self.free[row, slot]) for name, row in self.rows.items()})
