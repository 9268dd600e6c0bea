"""Reservation: keeps room that is reserved for other instances; owners use their reserved room first."""

from collections.abc import Hashable, Iterator

import numpy as np

from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalFilter, IncrementalScore, Reach
from mandor.placement.framework.points import CAPACITY_EVENTS, SCORE_MOST, SKIP, PreFilterPlugin, PreScorePlugin, Skip
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.reservations import ActiveReservation
from mandor.placement.framework.snapshot import Snapshot


class Reservation(PreFilterPlugin, IncrementalFilter, PreScorePlugin, IncrementalScore):
    """Skipped while there are no reservations."""

    name = "Reservation"
    retry_on = CAPACITY_EVENTS
    by_class = True

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        """Return `CLUSTER` while there are reservations: placed owners use up the reserved room of a node."""
        return Reach.CLUSTER if nodes.reservations else Reach.ATTRIBUTES

    def cache_key(self, request: PlacementRequest) -> Hashable:
        """The identity matters only while there are reservations; the scoring plan adds it then."""
        return None

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        return None if nodes.reservations.not_for(request.identity) else SKIP

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        fits = np.ones(len(nodes), dtype=np.bool_)
        wanted = dict(request.shape.wanted)
        for slot, held in _held_by_node(nodes.reservations.not_for(request.identity), nodes):
            fits[slot] = all(
                int(nodes.free[nodes.rows[each], slot]) - held.get(each, 0) >= amount
                for each, amount in wanted.items()
                if each in nodes.rows
            )
        return fits

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        slots = {int(slot) for slot in refused.nonzero()[0]}
        said = [
            f"reserved for {each.shown_to(request.key.namespace)} until {each.until}"
            for each in nodes.reservations.not_for(request.identity)
            if any(nodes.slots.get(node) in slots for node in each.places)
        ]
        return "; ".join(said)

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        return None if any(each.is_for(request.identity) for each in nodes.reservations) else SKIP

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        """Prefer nodes with room that is reserved for the request."""
        scores = np.zeros(len(nodes), dtype=np.int64)
        mine = [each for each in nodes.reservations if each.is_for(request.identity)]
        for slot, held in _held_by_node(mine, nodes):
            if any(held.values()):
                scores[slot] = SCORE_MOST
        return scores


def _held_by_node(reservations: list[ActiveReservation], nodes: Snapshot) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield the amounts that reservations still hold, by slot."""
    for name in {node for each in reservations for node in each.places}:
        slot = nodes.slots.get(name)
        if slot is None:
            continue
        lodged = [(each.identity, dict(each.shape.wanted)) for each in nodes.occupancy.placed_instances(name)]
        total: dict[str, int] = {}
        for each in reservations:
            for resource, amount in each.left(name, lodged).items():
                total[resource] = total.get(resource, 0) + amount
        yield slot, total
