"""Amounts of each resource that would be allocated on each node, as Kubernetes' scoring functions count them."""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr

from mandor.model.resources import resource_name
from mandor.placement.framework.cached_columns import EVERYWHERE, At
from mandor.placement.framework.column import Scores
from mandor.placement.framework.request import CPU, DISK, MEMORY, PlacementRequest
from mandor.placement.framework.snapshot import Amounts, Snapshot

_COUNTED = {CPU: 0, MEMORY: 1}
_ALWAYS = frozenset({CPU, MEMORY, DISK})


class Weighed(Struct, frozen=True, forbid_unknown_fields=True):
    """A resource and its weight in a score."""

    name: str
    weight: int = 1

    def __post_init__(self) -> None:
        force_setattr(self, "name", resource_name(self.name, "name"))
        if not 0 <= self.weight <= 100:
            raise ValueError(f"the weight of {self.name} is {self.weight}; a weight is 1..100 (0 means 1)")


CPU_AND_MEMORY = (Weighed(CPU), Weighed(MEMORY))


def counted_resources(request: PlacementRequest, resources: Iterable[Weighed]) -> list[Weighed]:
    """Return the resources that a score of the request counts: without devices that are not requested."""
    wanted = dict(request.shape.wanted)
    return [each for each in resources if each.name in _ALWAYS or each.name in wanted]


def requested(
    request: PlacementRequest,
    nodes: Snapshot,
    resources: Iterable[Weighed],
    *,
    counted: bool = True,
    at: At = EVERYWHERE,
) -> list[tuple[Amounts, Amounts, int]]:
    """Return (allocated including the request, capacity, weight) by resource, without devices that are not requested.

    `counted`: tasks without a CPU or memory request count with Kubernetes' default for scores.
    """
    found = []
    for each in counted_resources(request, resources):
        row, wanted = nodes.rows.get(each.name), dict(request.shape.wanted).get(each.name, 0)
        if row is None:
            empty = np.zeros_like(nodes.instances[at])
            found.append((empty + wanted, empty, each.weight or 1))
            continue
        capacity = nodes.allocatable[row, at]
        index = _COUNTED.get(each.name)
        if counted and index is not None:
            taken = nodes.counted[index, at] + request.shape.counted[index]
        else:
            taken = capacity - nodes.free[row, at] + wanted
        found.append((taken, capacity, each.weight or 1))
    return found


def weighed_mean(scores: Sequence[tuple[Scores, Amounts, int]]) -> Scores:
    """Return the weighted mean over the resources that a node has, rounded down; at least one score is given."""
    total = weights = np.zeros(1, dtype=np.int64)
    for score, capacity, weight in scores:
        has = capacity > 0
        total = total + np.where(has, score * weight, 0)
        weights = weights + has * weight
    mean: Scores = total // np.maximum(weights, 1)
    return mean
