"""NodeResourcesFit: filters nodes by free resources; prefers the emptiest, the fullest, or by a curve."""

from collections.abc import Hashable
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr

from mandor.lib.quantity import Cpu, Size
from mandor.model.resources import VENDORS, resource_name
from mandor.placement.framework.allocation import CPU_AND_MEMORY, Weighed, requested, weighed_mean
from mandor.placement.framework.cached_columns import At
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import Formula, IncrementalFilter, IncrementalScore, Reach
from mandor.placement.framework.points import CAPACITY_EVENTS, SCORE_MOST
from mandor.placement.framework.request import CPU, DISK, MEMORY, PlacementRequest
from mandor.placement.framework.snapshot import Snapshot, Wanted

_MIB = 1024**2
_CURVE_MOST = 10
"""Highest score of a curve; Kubernetes' curves use 0..10."""


class CurvePoint(Struct, frozen=True, forbid_unknown_fields=True):
    """Score (0..10) at a utilization in percent."""

    utilization: int
    score: int

    def __post_init__(self) -> None:
        if not 0 <= self.utilization <= 100:
            raise ValueError(f"utilization {self.utilization} is not a percentage: 0..100")
        if not 0 <= self.score <= _CURVE_MOST:
            raise ValueError(f"score {self.score} is not in 0..{_CURVE_MOST}")


class Curve(Struct, frozen=True, forbid_unknown_fields=True):
    shape: tuple[CurvePoint, ...] = (CurvePoint(0, 0), CurvePoint(100, _CURVE_MOST))

    def __post_init__(self) -> None:
        if not self.shape:
            raise ValueError("a curve has at least one point")
        if any(after.utilization <= before.utilization for before, after in pairwise(self.shape)):
            raise ValueError("the utilization of a curve's points only grows")

    def table(self) -> Scores:
        """Return the score at each percent."""
        return np.array([self._at(percent) for percent in range(101)], dtype=np.int64)

    def _at(self, percent: int) -> int:
        scale = SCORE_MOST // _CURVE_MOST
        points = [(each.utilization, each.score * scale) for each in self.shape]
        if percent <= points[0][0]:
            return points[0][1]
        for (x0, y0), (x1, y1) in pairwise(points):
            if percent <= x1:
                return y0 + int((y1 - y0) * (percent - x0) / (x1 - x0))  # toward zero, as Go divides
        return points[-1][1]


class ScoringStrategy(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    type: Literal["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"] = "LeastAllocated"
    resources: tuple[Weighed, ...] = CPU_AND_MEMORY
    requested_to_capacity_ratio: Curve | None = None

    def __post_init__(self) -> None:
        if self.requested_to_capacity_ratio and self.type != "RequestedToCapacityRatio":
            raise ValueError("`requestedToCapacityRatio` belongs to the type RequestedToCapacityRatio")
        if not self.resources:
            raise ValueError("a strategy looks at one resource at least")


class NodeResourcesFitArgs(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    scoring_strategy: ScoringStrategy = ScoringStrategy()
    ignored_resources: tuple[str, ...] = ()
    """Resources that are not checked."""
    ignored_resource_groups: tuple[str, ...] = ()
    """Vendors whose devices are not checked: `example.com` of `example.com/foo`."""

    def __post_init__(self) -> None:
        names = [
            resource_name(each, "ignoredResources", str(index)) for index, each in enumerate(self.ignored_resources)
        ]
        force_setattr(self, "ignored_resources", tuple(names))
        force_setattr(
            self, "ignored_resource_groups", tuple(VENDORS.get(each, each) for each in self.ignored_resource_groups)
        )

    def ignores(self, resource: str) -> bool:
        return resource in self.ignored_resources or resource.rpartition("/")[0] in self.ignored_resource_groups


class NodeResourcesFit(IncrementalFilter, IncrementalScore):
    """The default score is Kubernetes' LeastAllocated over CPU and memory, with its integer rounding."""

    name = "NodeResourcesFit"
    Args = NodeResourcesFitArgs
    retry_on = CAPACITY_EVENTS
    by_class = True

    def __init__(self, args: NodeResourcesFitArgs | None = None) -> None:
        self._args = args or NodeResourcesFitArgs()
        strategy = self._args.scoring_strategy
        self._plain = strategy == ScoringStrategy()
        self.fit_formula = not (self._args.ignored_resources or self._args.ignored_resource_groups)
        self.score_formula = Formula.LEAST_ALLOCATED if self._plain else None

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ROOM

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return None

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        return self.filter_cached(request, nodes)

    def filter_at(self, request: PlacementRequest, nodes: Snapshot, at: At) -> Mask:
        fits: Mask | None = None
        for resource, amount in request.shape.wanted:
            row = nodes.rows.get(resource)
            if self._args.ignores(resource):
                continue
            if row is None:
                return np.zeros_like(nodes.instances[at], dtype=np.bool_)
            enough = nodes.free[row, at] >= amount
            fits = enough if fits is None else fits & enough
        return np.ones_like(nodes.instances[at], dtype=np.bool_) if fits is None else fits

    def filter_slot(self, request: PlacementRequest, nodes: Snapshot, slot: int) -> bool:
        for resource, amount in request.shape.wanted:
            row = nodes.rows.get(resource)
            if not self._args.ignores(resource) and (row is None or nodes.free[row, slot] < amount):
                return False
        return True

    def needs(self, request: PlacementRequest) -> Wanted:
        return tuple(each for each in request.shape.wanted if not self._args.ignores(each[0]))

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        return ", ".join(
            f"short of {_shown(resource, short)} {resource}"
            for resource, amount in request.shape.wanted
            if not self._args.ignores(resource) and (short := _shortage(resource, amount, nodes, refused)) > 0
        )

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        return self.score_cached(request, nodes)

    def score_slot(self, request: PlacementRequest, nodes: Snapshot, slot: int) -> int:
        if not self._plain:
            return int(self.score_at(request, nodes, slice(slot, slot + 1))[0])
        total = counted = 0
        for row in (0, 1):
            capacity = int(nodes.allocatable[row, slot])
            if capacity:
                counted += 1
                left = capacity - int(nodes.counted[row, slot]) - request.shape.counted[row]
                total += max(left, 0) * SCORE_MOST // capacity
        return total // counted if counted else 0

    def score_at(self, request: PlacementRequest, nodes: Snapshot, at: At) -> Scores:
        if self._plain:
            return _least_of_cpu_and_memory(request, nodes, at)
        strategy = self._args.scoring_strategy
        amounts = requested(request, nodes, strategy.resources, at=at)
        if not amounts:
            return np.zeros_like(nodes.instances[at])
        if strategy.type == "RequestedToCapacityRatio":
            return self._by_curve(amounts)
        scores = []
        for taken, capacity, weight in amounts:
            share = capacity - taken if strategy.type == "LeastAllocated" else np.minimum(taken, capacity)
            scores.append((np.maximum(share, 0) * SCORE_MOST // np.maximum(capacity, 1), capacity, weight))
        return weighed_mean(scores)

    @cached_property
    def _curve(self) -> Scores:
        return (self._args.scoring_strategy.requested_to_capacity_ratio or Curve()).table()

    def _by_curve(self, amounts: list[tuple[Scores, Scores, int]]) -> Scores:
        total = weights = np.zeros(1, dtype=np.int64)
        for taken, capacity, weight in amounts:
            over = (capacity == 0) | (taken > capacity)
            percent = np.where(over, 100, taken * 100 // np.maximum(capacity, 1))
            score = self._curve[percent]
            total = total + score * weight
            weights = weights + (score > 0) * weight  # as in Kubernetes, a resource with score 0 is not counted
        rounded: Scores = np.floor(total / np.maximum(weights, 1) + 0.5).astype(np.int64)
        return rounded


def _least_of_cpu_and_memory(request: PlacementRequest, nodes: Snapshot, at: At) -> Scores:
    capacity = nodes.allocatable[:2, at]  # CPU and memory
    left = capacity - nodes.counted[:, at]
    left -= np.array(request.shape.counted)[:, np.newaxis]
    np.maximum(left, 0, out=left)
    left *= SCORE_MOST
    left //= np.maximum(capacity, 1)
    # A node without one of the resources is rated by the other.
    counted = (capacity[0] > 0).astype(np.int64) + (capacity[1] > 0)
    scores: Scores = (left[0] + left[1]) // np.maximum(counted, 1)
    return scores


def _shortage(resource: str, amount: int, nodes: Snapshot, refused: Mask) -> int:
    """Return the smallest shortage of the refused nodes; 0 if one of them has enough."""
    row = nodes.rows.get(resource)
    return amount if row is None else amount - int(nodes.free[row][refused].max())


def _shown(resource: str, amount: int) -> str:
    if resource == CPU:
        return str(Cpu(amount))
    if resource not in {MEMORY, DISK}:
        return str(amount)
    # Round up to MiB: exact byte counts are hard to read.
    return str(Size(amount if amount < _MIB else -(-amount // _MIB) * _MIB))
