"""Placed instances of the nodes: their priority, age and end, and changes to them in a trial."""

from collections.abc import Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mandor.model.meta import Key
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.request import Shape


@dataclass(frozen=True, slots=True)
class Rank:
    """Priority and preemption settings; the instances of a group share one object."""

    priority: int = 0
    preempts: bool = True
    """Whether it may preempt instances of lower priority."""
    spared: bool = False
    """Whether it is never preempted."""
    profile: str = "default"


ORDINARY = Rank()


class AllocationTerms(Struct, frozen=True, gc=False):
    """Priority, age and end of the allocation of one instance."""

    rank: Rank = ORDINARY
    born: float = 0.0
    """Creation, in seconds of wall time."""
    until: float | None = None
    """Time at which a stopping instance has ended at the latest; None: it is not stopping."""
    held: bool = False
    """Whether room is held for an instance that is not placed yet."""

    @property
    def settled(self) -> bool:
        """Whether the instance is placed and not stopping."""
        return self.until is None and not self.held


SETTLED = AllocationTerms()


class PlacedInstance(NamedTuple):
    """An instance that is counted on a node, or for which room is held there."""

    key: Key
    shape: Shape
    identity: Identity
    terms: AllocationTerms

    @property
    def priority(self) -> int:
        return self.terms.rank.priority

    @property
    def importance(self) -> tuple[int, float, Key]:
        """Sort key: higher priorities first, then older instances."""
        return -self.terms.rank.priority, self.terms.born, self.key


class PriorityUsage(NamedTuple):
    """Allocations of the settled instances of one priority that may be preempted."""

    priority: int
    taken: NDArray[np.int64]
    """`[resource, node]`; the last row is the number of instances."""


class StoppingUsage(NamedTuple):
    """Allocations of the stopping instances."""

    taken: NDArray[np.int64]
    """`[resource, node]`, as in `PriorityUsage`."""
    latest: NDArray[np.float64]
    """Time by node at which the last of them has ended."""


class GroupAllocations(NamedTuple):
    """Settled instances of one group with equal shape and priority."""

    shape: Shape
    priority: int
    counts: Mapping[str, int]
    """Number of instances by node."""


class Occupancy(Protocol):
    """The placed instances of all nodes, for reading."""

    def placed_instances(self, node: str) -> list[PlacedInstance]:
        """Return the instances of a node, the highest priority first."""

    def stopping(
        self, *, by: float = ..., among: Container[str] | None = ..., most: int | None = ...
    ) -> Sequence[tuple[str, PlacedInstance]]:
        """Return the stopping instances with their nodes, the earliest end first.

        `by`: those that have ended by this time; `among`: those on these nodes; `most`: the maximum number.
        """

    def going(self) -> StoppingUsage:
        """Return the allocations of all stopping instances as columns."""

    def held(self) -> Sequence[tuple[str, PlacedInstance]]:
        """Return the instances for which room is held, with their nodes."""

    def lowest_held(self) -> int | None:
        """Return the lowest priority for which room is held; None: no room is held."""

    def lowest(self) -> int | None:
        """Return the lowest priority of the settled instances; None: there are none."""

    def levels(self, below: int) -> Sequence[PriorityUsage]:
        """Return the allocations by priority, for priorities below this one, the lowest first."""

    def allowed(self, identity: Identity) -> int | None:
        """Return the number of further instances of a group that may be disrupted; None: there is no budget."""

    def tight(self) -> Sequence[GroupAllocations]:
        """Return the settled instances of groups whose disruption budget is used up, without those that are never
        preempted."""


class TrialOccupancy(Occupancy, Protocol):
    """The placed instances of all nodes, where changes can be tried: they are undone at the end of the trial."""

    @property
    def in_trial(self) -> bool:
        """Whether a trial is open."""

    def trial(self) -> AbstractContextManager[object]: ...

    def set_allocation(
        self, key: Key, node: str, shape: Shape, identity: Identity = ..., terms: AllocationTerms = ...
    ) -> None: ...

    def drop_allocation(self, key: Key) -> bool: ...
