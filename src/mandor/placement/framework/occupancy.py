"""Who lodges on which node: how much they matter, since when, until when; and what can be tried out with them."""

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
    """What an instance is worth beside others; one object for all of a group."""

    priority: int = 0
    preempts: bool = True
    """It may take the place of lower ones."""
    spared: bool = False
    """Nobody takes its place."""
    profile: str = "default"


ORDINARY = Rank()


class AllocationTerms(Struct, frozen=True, gc=False):
    """How one instance stands on its node."""

    rank: Rank = ORDINARY
    born: float = 0.0
    """Wall time: the later, the younger."""
    until: float | None = None
    """It stops, and is gone by then; None: it stays."""
    held: bool = False
    """It is not there yet: room is held for it."""

    @property
    def settled(self) -> bool:
        return self.until is None and not self.held


SETTLED = AllocationTerms()


class PlacedInstance(NamedTuple):
    key: Key
    shape: Shape
    identity: Identity
    terms: AllocationTerms

    @property
    def priority(self) -> int:
        return self.terms.rank.priority

    @property
    def importance(self) -> tuple[int, float, Key]:
        """The most important comes first: by priority, then by age."""
        return -self.terms.rank.priority, self.terms.born, self.key


class PriorityUsage(NamedTuple):
    """What the settled lodgers of one priority take, those who are spared left out."""

    priority: int
    taken: NDArray[np.int64]
    """`[resource, node]`; in the last row how many they are."""


class StoppingUsage(NamedTuple):
    """What those take who are about to go."""

    taken: NDArray[np.int64]
    """As of a level; not to be changed."""
    latest: NDArray[np.float64]
    """By node: when the last of them is gone."""


class GroupAllocations(NamedTuple):
    """Lodgers of one group, of one shape and priority."""

    shape: Shape
    priority: int
    counts: Mapping[str, int]
    """By node; not to be changed."""


class Occupancy(Protocol):
    """The placed instances of all nodes, for reading."""

    def placed_instances(self, node: str) -> list[PlacedInstance]:
        """The most important first."""

    def stopping(
        self, *, by: float = ..., among: Container[str] | None = ..., most: int | None = ...
    ) -> Sequence[tuple[str, PlacedInstance]]:
        """Those who are about to go, with their nodes, the soonest first. `by`: who is gone then; `among`: on these
        nodes; `most`: so many of them."""

    def going(self) -> StoppingUsage:
        """The same in amounts."""

    def held(self) -> Sequence[tuple[str, PlacedInstance]]:
        """Those for whom room is held, by node."""

    def lowest_held(self) -> int | None:
        """The lowest priority of all for whom room is held; None: for nobody."""

    def lowest(self) -> int | None:
        """The lowest priority of all who are settled; None: nobody is."""

    def levels(self, below: int) -> Sequence[PriorityUsage]:
        """Of the priorities below, the lowest first."""

    def allowed(self, identity: Identity) -> int | None:
        """How many more of its group may be disrupted; None: nobody counts."""

    def tight(self) -> Sequence[GroupAllocations]:
        """The settled lodgers of groups of whom nobody more may be disrupted, those who are spared left out."""


class TrialOccupancy(Occupancy, Protocol):
    """The placed instances of all nodes, where changes can be tried: they are undone at the end of the trial."""

    def trial(self) -> AbstractContextManager[object]: ...

    def set_allocation(
        self, key: Key, node: str, shape: Shape, identity: Identity = ..., terms: AllocationTerms = ...
    ) -> None: ...

    def drop_allocation(self, key: Key) -> bool: ...
