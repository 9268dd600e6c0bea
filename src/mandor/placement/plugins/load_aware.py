"""LoadAware: filters and prefers nodes by their measured usage."""

import numpy as np
from msgspec import Struct

from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalFilter, IncrementalScore
from mandor.placement.framework.points import CAPACITY_EVENTS, SCORE_MOST, SKIP, ClusterEvent, PreFilterPlugin, Skip
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Amounts, Snapshot

_RESOURCES = ("cpu", "memory")


class LoadAwareArgs(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    usage_thresholds: dict[str, int] = {}
    """Limits by resource (`cpu`, `memory`) in percent; a node that uses more takes no new instances. Absent: no
    limit."""

    def __post_init__(self) -> None:
        for resource, percent in self.usage_thresholds.items():
            if resource not in _RESOURCES or not 0 < percent <= 100:
                raise ValueError(f"usageThresholds: {resource}: {percent}; it is cpu or memory, and 1..100")


class LoadAware(PreFilterPlugin, IncrementalFilter, IncrementalScore):
    """The load is the last measured usage plus the requests of instances placed since; without a measurement, the
    requests. The score is the free share of CPU and memory, as LeastAllocated computes it."""

    name = "LoadAware"
    Args = LoadAwareArgs
    retry_on = CAPACITY_EVENTS | {ClusterEvent.LOAD_CHANGED}
    by_class = True

    def __init__(self, args: LoadAwareArgs | None = None) -> None:
        self._thresholds = (args or LoadAwareArgs()).usage_thresholds

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        return None if self._thresholds else SKIP

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        fits = np.ones(len(nodes), dtype=np.bool_)
        for resource in self._thresholds:
            fits &= self._cool(resource, nodes)
        return fits

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        hot = [each for each in self._thresholds if not self._cool(each, nodes)[refused].all()]
        return ", ".join(f"uses more than {self._thresholds[each]} % of its {each}" for each in hot)

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        capacity = nodes.allocatable[:2]
        left = capacity - _load(nodes) - np.array(request.shape.counted)[:, np.newaxis]
        shares = np.maximum(left, 0) * SCORE_MOST // np.maximum(capacity, 1)
        has = (capacity > 0).sum(axis=0)
        scores: Scores = np.where(capacity > 0, shares, 0).sum(axis=0) // np.maximum(has, 1)
        return scores

    def _cool(self, resource: str, nodes: Snapshot) -> Mask:
        row = _RESOURCES.index(resource)
        used, capacity = nodes.usage[row], nodes.allocatable[row]
        cool: Mask = (used < 0) | (used * 100 <= self._thresholds[resource] * capacity)
        return cool


def _load(nodes: Snapshot) -> Amounts:
    measured = nodes.usage + np.maximum(nodes.counted - nodes.since_usage, 0)
    return np.where(nodes.usage < 0, nodes.counted, measured)
