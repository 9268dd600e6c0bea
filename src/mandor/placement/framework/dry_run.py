"""Dry run of a preemption: lets a PostFilter plugin try changes of the table for a request that fits no node."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from mandor.model.meta import Key
from mandor.placement.framework.column import Mask
from mandor.placement.framework.occupancy import Occupancy, PlacedInstance
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot

OVERDUE_SECONDS = 60.0
"""Seconds after its expected end at which a stopping instance is no longer waited for."""


class TrialFilters(ABC):
    """The filters and scores of a profile, run for one request on the table with the changes of a trial."""

    @property
    @abstractmethod
    def possible(self) -> Mask:
        """Nodes that could fit if instances were removed."""

    @property
    @abstractmethod
    def needs(self) -> Mapping[str, int]:
        """Amounts by resource that must be free on a node; known once `possible` was read."""

    @property
    @abstractmethod
    def by_amounts(self) -> bool:
        """Whether free amounts alone decide between the possible nodes."""

    @abstractmethod
    def fits(self, slot: int) -> bool:
        """Return whether the node takes the request."""

    @abstractmethod
    def place(self) -> str:
        """Return the best node; empty: no node fits."""

    @abstractmethod
    def of(self, request: PlacementRequest) -> "TrialFilters":
        """Return the filters for another request, without what was computed before."""


class DryRun:
    """A request that fits no node, and changes to the table that are undone at the end of a `trial`.

    Only PostFilter plugins receive one. `possible` is computed once: it is valid while instances are only removed.
    After other changes, use `of`.
    """

    def __init__(
        self,
        request: PlacementRequest,
        nodes: Snapshot,
        filters: TrialFilters,
        *,
        nominated: str = "",
        now: float = 0.0,
        patience: float = 0.0,
    ) -> None:
        self.request = request
        self.nodes = nodes
        self.nominated = nominated
        """Node where room was made for the request before; empty: none."""
        self.now = now
        """Current wall time in seconds."""
        self.soon = now + patience
        """Time until which stopping instances are waited for instead of preempting others."""
        self._filters = filters
        self._trials = nodes._trials

    @property
    def possible(self) -> Mask:
        """Nodes that could fit if instances were removed."""
        return self._filters.possible

    @property
    def needs(self) -> Mapping[str, int]:
        """Amounts by resource that must be free on a node; known once `possible` was read."""
        return self._filters.needs

    @property
    def by_amounts(self) -> bool:
        """Whether free amounts alone decide between the possible nodes."""
        return self._filters.by_amounts

    @property
    def occupancy(self) -> Occupancy:
        """The placed instances, including the changes of the trial."""
        return self.nodes.occupancy

    def of(self, request: PlacementRequest) -> "DryRun":
        """Return a dry run of another request on the table as it is in this trial."""
        return DryRun(request, self.nodes, self._filters.of(request), now=self.now, patience=self.soon - self.now)

    def fits(self, slot: int) -> bool:
        """Return whether the node takes the request, with the changes of the trial."""
        return self._filters.fits(slot)

    def place(self) -> str:
        """Return the best node, with the changes of the trial; empty: no node fits."""
        return self._filters.place()

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo all changes at the end of the block."""
        with self._trials.trial():
            yield

    def leave(self, placed_instances: Iterable[PlacedInstance]) -> None:
        """Remove instances until the end of the trial."""
        for each in placed_instances:
            self.drop(each.key)

    def drop(self, key: Key) -> None:
        """Remove an instance, or the room that is held for it, until the end of the trial."""
        self._check_trial()
        self._trials.drop_allocation(key)

    def come(self, node: str, placed_instance: PlacedInstance) -> None:
        """Place an instance on a node until the end of the trial."""
        self._check_trial()
        self._trials.set_allocation(
            placed_instance.key, node, placed_instance.shape, placed_instance.identity, placed_instance.terms
        )

    def _check_trial(self) -> None:
        if not self._trials.in_trial:
            raise RuntimeError("changes of a dry run are made within `with dry_run.trial():`")

    def victims_remain(self) -> bool:
        """Return whether the nominated node still has stopping instances, and fits once they have ended."""
        slot = self.nodes.slots.get(self.nominated)
        if slot is None or not self.possible[slot]:
            return False
        late = self.now - OVERDUE_SECONDS
        going = [
            each
            for each in self.occupancy.placed_instances(self.nominated)
            if each.terms.held or (each.terms.until is not None and each.terms.until >= late)
        ]
        if all(each.terms.held for each in going):
            return False
        with self.trial():
            self.leave(each for each in going if not each.terms.held or each.priority < self.request.priority)
            return self.fits(slot)
