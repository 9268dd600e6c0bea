"""Scores of room, on random clusters: the vector form says what a plain loop says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from mandor.model.node import Node
from mandor.placement.framework.allocation import Weighed
from mandor.placement.framework.points import ScorePlugin
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.plugins.bin_pack import BinPack
from mandor.placement.plugins.fragmentation import Fragmentation
from mandor.placement.plugins.image_locality import ImageLocality
from mandor.placement.plugins.load_aware import LoadAware
from mandor.placement.plugins.node_resources_balanced_allocation import (
    NodeResourcesBalancedAllocation,
    NodeResourcesBalancedAllocationArgs,
)
from mandor.placement.plugins.node_resources_fit import (
    Curve,
    CurvePoint,
    NodeResourcesFit,
    NodeResourcesFitArgs,
    ScoringStrategy,
)
from tests.property.neighbourhood import Placed, clusters
from tests.property.tables import build, check_scores
from tests.scenarios.make import MI

BRIEFLY = settings(max_examples=80, deadline=None)


# Room, as plain as can be.


def amounts(request: PlacementRequest, node: Node, placed: Placed, resource: str, *, counted: bool) -> tuple[int, int]:
    """Taken with it, and capacity."""
    room = node.allocatable
    capacity = {"cpu": room.cpu_milli, "memory": room.memory_bytes, "disk": room.disk_bytes}[resource]
    here = [*(shape for name, shape, _ in placed if name == node.meta.name), request.shape]
    if counted and resource in {"cpu", "memory"}:
        return sum(shape.counted[("cpu", "memory").index(resource)] for shape in here), capacity
    return sum(dict(shape.wanted).get(resource, 0) for shape in here), capacity


def plain_share(strategy: str, weights: dict[str, int]) -> Callable[..., int]:
    def score(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> int:
        total = weight = 0
        for resource, each in weights.items():
            taken, capacity = amounts(request, node, placed, resource, counted=True)
            if capacity == 0:
                continue
            weight += each
            if strategy == "least":
                total += each * ((capacity - taken) * 100 // capacity if taken <= capacity else 0)
            else:
                total += each * (min(taken, capacity) * 100 // capacity)
        return total // weight if weight else 0

    return score


def plain_curve(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> int:
    """0 at 0 %, 100 at 50 %, 20 at 100 %."""
    total = weights = 0
    for resource, weight in {"cpu": 3, "memory": 1}.items():
        taken, capacity = amounts(request, node, placed, resource, counted=True)
        percent = 100 if capacity == 0 or taken > capacity else taken * 100 // capacity
        score = percent * 100 // 50 if percent <= 50 else 100 + math.trunc(-80 * (percent - 50) / 50)
        if score > 0:
            total += score * weight
            weights += weight
    return math.floor(total / weights + 0.5) if weights else 0


def plain_balance(resources: tuple[str, ...], *, without: bool = False) -> Callable[..., int]:
    """Return the balance with the instance, or without it."""

    def score(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> int:
        shares = []
        for resource in resources:
            taken, capacity = amounts(request, node, placed, resource, counted=False)
            taken -= dict(request.shape.wanted).get(resource, 0) if without else 0
            if capacity:
                shares.append(min(taken / capacity, 1.0))
        deviation = 0.0
        if len(shares) == 2:
            deviation = abs((shares[0] - shares[1]) / 2)
        elif len(shares) > 2:
            mean = sum(shares) / len(shares)
            deviation = math.sqrt(sum((each - mean) ** 2 for each in shares) / len(shares))
        return int((1 - deviation) * 100)

    return score


def plain_change(resources: tuple[str, ...]) -> Callable[..., int]:
    """Return the score of Kubernetes 1.36: no change of the balance gives 75."""
    after, before = plain_balance(resources), plain_balance(resources, without=True)

    def score(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> int:
        change = after(request, node, found, placed) - before(request, node, found, placed)
        return 50 + math.trunc((50 + change) / 2)

    return score


def state_of(*resources: str) -> NodeResourcesBalancedAllocation:
    args = NodeResourcesBalancedAllocationArgs(tuple(map(Weighed, resources)), formula="state")
    return NodeResourcesBalancedAllocation(args)


def plain_pack(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> int:
    taken, capacity = amounts(request, node, placed, "memory", counted=True)
    if not capacity or taken > capacity:
        return 0
    if taken * 100 > 70 * capacity:
        return 49 * 100 * (capacity - taken) // (30 * capacity)
    return min(50 + 50 * 100 * taken // (65 * capacity), 100)


def plain_load(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> int:
    """The node has measured before anything was placed in these tables."""
    total = weight = 0
    usage = node.status.usage
    for resource in ("cpu", "memory"):
        taken, capacity = amounts(request, node, placed, resource, counted=True)
        if usage is not None:
            taken += usage.cpu_milli if resource == "cpu" else usage.memory_bytes
        if capacity:
            weight += 1
            total += max(capacity - taken, 0) * 100 // capacity
    return total // weight if weight else 0


def plain_images(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> int:
    total = 0
    for name in request.shape.image_names:
        tagged = name if ":" in name else f"{name}:latest"
        holders = sum(tagged in other.status.images for other in found)
        if tagged in node.status.images:
            total += int(node.status.images[tagged] * (holders / len(found)))
    least, most = 23 * MI, 1000 * MI * len(request.shape.image_names)
    return 100 * (min(max(total, least), most) - least) // (most - least)


def plain_loss(request: PlacementRequest, node: Node, found: list[Node], placed: Placed) -> int:
    asked: dict[Any, int] = {}
    for _, shape, _ in placed:
        if shape.wanted:
            asked[shape.wanted] = asked.get(shape.wanted, 0) + 1
    usual = sorted(asked.items(), key=lambda item: (item[1], item[0]), reverse=True)[:4]
    total = 0
    for wanted, count in usual:
        before, after = [], []
        share = 0
        for resource, amount in wanted:
            room = {"cpu": node.allocatable.cpu_milli, "memory": node.allocatable.memory_bytes}[resource]
            used = sum(dict(shape.wanted).get(resource, 0) for name, shape, _ in placed if name == node.meta.name)
            taken = dict(request.shape.wanted).get(resource, 0)
            before.append(max(room - used, 0) // amount)
            after.append(max(room - used - taken, 0) // amount)
            most = max(amounts(request, each, placed, resource, counted=False)[1] for each in found)
            share = max(share, min(1000, 1000 * amount // most) if most else 0)
        total += (min(before) - min(after)) * max(1, share) * count
    return total


CURVE = Curve((CurvePoint(0, 0), CurvePoint(50, 10), CurvePoint(100, 2)))


def fit(strategy: str, *resources: Weighed, curve: Curve | None = None) -> NodeResourcesFit:
    chosen = ScoringStrategy(strategy, resources, curve)  # type: ignore[arg-type]
    return NodeResourcesFit(NodeResourcesFitArgs(scoring_strategy=chosen))


SCORES: list[tuple[ScorePlugin, Callable[..., int]]] = [
    (fit("LeastAllocated", Weighed("cpu", 2), Weighed("memory", 1)), plain_share("least", {"cpu": 2, "memory": 1})),
    (NodeResourcesFit(), plain_share("least", {"cpu": 1, "memory": 1})),
    (
        fit("MostAllocated", Weighed("cpu"), Weighed("memory", 3), Weighed("disk")),
        plain_share("most", {"cpu": 1, "memory": 3, "disk": 1}),
    ),
    (fit("RequestedToCapacityRatio", Weighed("cpu", 3), Weighed("memory"), curve=CURVE), plain_curve),
    (NodeResourcesBalancedAllocation(), plain_change(("cpu", "memory"))),
    (state_of("cpu", "memory"), plain_balance(("cpu", "memory"))),
    (state_of("cpu", "memory", "disk"), plain_balance(("cpu", "memory", "disk"))),
    (
        NodeResourcesBalancedAllocation(
            NodeResourcesBalancedAllocationArgs((Weighed("cpu"), Weighed("memory"), Weighed("disk")))
        ),
        plain_change(("cpu", "memory", "disk")),
    ),
    (BinPack(), plain_pack),
    (LoadAware(), plain_load),
    (ImageLocality(), plain_images),
    (Fragmentation(), plain_loss),
]


@pytest.mark.req("S2-14", "S2-15", "S0-10")
@BRIEFLY
@given(cluster=clusters())
def test_a_vectorised_score_shows_what_a_plain_loop_shows(cluster: Any) -> None:
    found, placed, request = cluster
    for plugin, plain in SCORES:
        expected = [plain(request, node, found, placed) for node in found]
        check_scores(plugin, request, build(found, placed).snapshot(), expected)
