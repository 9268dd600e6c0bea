"""NodeResourcesBalancedAllocation: prefers nodes whose resources would be used more evenly."""

from collections.abc import Hashable, Sequence
from typing import Literal, TypeVar

import numpy as np
from msgspec import Struct

from mandor.placement.framework.allocation import CPU_AND_MEMORY, Weighed, counted_resources, requested
from mandor.placement.framework.cached_columns import At
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import Formula, IncrementalScore, Reach
from mandor.placement.framework.points import SCORE_MOST, SKIP, PreScorePlugin, Skip
from mandor.placement.framework.request import CPU, MEMORY, PlacementRequest
from mandor.placement.framework.snapshot import Amounts, Snapshot


class NodeResourcesBalancedAllocationArgs(Struct, frozen=True, forbid_unknown_fields=True):
    resources: tuple[Weighed, ...] = CPU_AND_MEMORY
    formula: Literal["change", "state"] = "change"
    """`change`: scores the change of the balance by the instance, as Kubernetes does since 1.36. `state`: scores the
    balance with the instance, as Kubernetes did until 1.35. Defaults to `change`."""

    def __post_init__(self) -> None:
        if any(each.weight not in {0, 1} for each in self.resources):
            raise ValueError("the resources are weighed equally: a weight is 1")


class NodeResourcesBalancedAllocation(PreScorePlugin, IncrementalScore):
    """The balance of a node is 100 minus the standard deviation of the used shares in percent, computed from requests
    without defaults. The score is 75 plus half of the change of the balance: 50 to 100."""

    name = "NodeResourcesBalancedAllocation"
    Args = NodeResourcesBalancedAllocationArgs

    def __init__(self, args: NodeResourcesBalancedAllocationArgs | None = None) -> None:
        self._args = args or NodeResourcesBalancedAllocationArgs()
        self._named = frozenset(each.name for each in self._args.resources)
        self._change = self._args.formula == "change"
        if self._args.resources == CPU_AND_MEMORY:
            self.score_formula = Formula.BALANCE_CHANGE if self._change else Formula.BALANCED

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ROOM

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return self._moves(request)

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        """Skip requests without any of the resources: they do not change the balance."""
        return None if self._moves(request) else SKIP

    def _moves(self, request: PlacementRequest) -> bool:
        return any(resource in self._named for resource, _ in request.shape.wanted)

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        return self.score_cached(request, nodes)

    def score_slot(self, request: PlacementRequest, nodes: Snapshot, slot: int) -> int:
        if self._args.resources != CPU_AND_MEMORY:
            return int(self.score_at(request, nodes, slice(slot, slot + 1))[0])
        before, after, wanted = [], [], dict(request.shape.wanted)
        for row, resource in enumerate((CPU, MEMORY)):
            capacity = int(nodes.allocatable[row, slot])
            if capacity:
                taken = capacity - int(nodes.free[row, slot])
                before.append(min(taken / capacity, 1.0))
                after.append(min((taken + wanted.get(resource, 0)) / capacity, 1.0))
        return _changed(_pair(before), _pair(after)) if self._change else _pair(after)

    def score_at(self, request: PlacementRequest, nodes: Snapshot, at: At) -> Scores:
        amounts = requested(request, nodes, self._args.resources, counted=False, at=at)
        after = _balance([(taken, capacity) for taken, capacity, _ in amounts])
        if not self._change:
            return after
        asked = dict(request.shape.wanted)
        own = [asked.get(each.name, 0) for each in counted_resources(request, self._args.resources)]
        before = _balance([(taken - mine, capacity) for (taken, capacity, _), mine in zip(amounts, own, strict=True)])
        return _changed(before, after)


def _pair(shares: Sequence[float]) -> int:
    """Return the balance of the shares of two resources; 100 if the node has only one of them."""
    deviation = abs(shares[0] - shares[1]) / 2 if len(shares) == 2 else 0.0
    return int((1 - deviation) * SCORE_MOST)


T = TypeVar("T", int, Scores)


def _changed(before: T, after: T) -> T:
    """Return the score of a change of the balance, rounded down."""
    return SCORE_MOST // 2 + (SCORE_MOST // 2 + after - before) // 2


def _balance(amounts: Sequence[tuple[Amounts, Amounts]]) -> Scores:
    """Return the balance of each node, for (used, capacity) by resource."""
    shares = [np.minimum(taken / np.maximum(capacity, 1), 1.0) for taken, capacity in amounts]
    has = [capacity > 0 for _, capacity in amounts]
    if len(shares) == 2 and has[0].all() and has[1].all():
        deviation = np.abs(shares[0] - shares[1]) / 2
    else:
        deviation = _deviation(np.array(shares), np.array(has))
    scores: Scores = ((1 - deviation) * SCORE_MOST).astype(np.int64)
    return scores


def _deviation(
    shares: np.ndarray[tuple[int, int], np.dtype[np.float64]], has: Mask
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the standard deviation over the resources of a node, with Kubernetes' different rounding for two
    resources."""
    count = has.sum(axis=0)
    total = np.where(has, shares, 0.0).sum(axis=0)
    mean = total / np.maximum(count, 1)
    squares = np.where(has, (shares - mean) ** 2, 0.0).sum(axis=0)
    many = np.sqrt(squares / np.maximum(count, 1))
    pair = np.where(has, shares, -np.inf).max(axis=0) - np.where(has, shares, np.inf).min(axis=0)
    return np.where(count == 2, pair / 2, np.where(count < 2, 0.0, many))
