"""Decisions on random clusters go by what the cluster is, and by nothing of how it came to be so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from mandor.model.node import Node
from mandor.placement.cycle import decide
from mandor.placement.framework.allocation import Weighed
from mandor.placement.framework.points import FilterPlugin, ScorePlugin
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.plugins.bin_pack import BinPack
from mandor.placement.plugins.fragmentation import Fragmentation
from mandor.placement.plugins.image_locality import ImageLocality
from mandor.placement.plugins.inter_pod_affinity import InterPodAffinity
from mandor.placement.plugins.load_aware import LoadAware, LoadAwareArgs
from mandor.placement.plugins.node_name import NodeName
from mandor.placement.plugins.node_resources_balanced_allocation import (
    NodeResourcesBalancedAllocation,
)
from mandor.placement.plugins.node_resources_fit import (
    Curve,
    CurvePoint,
    NodeResourcesFit,
    NodeResourcesFitArgs,
    ScoringStrategy,
)
from mandor.placement.plugins.pod_topology_spread import PodTopologySpread
from mandor.placement.plugins.pool_fit import PoolFit
from mandor.placement.plugins.proximity import Proximity
from mandor.placement.plugins.quota import Quota, QuotaArgs
from mandor.placement.plugins.vm_quota import VMQuota, VMQuotaArgs
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.property.neighbourhood import clusters, identities, labels, nodes, shapes
from tests.property.tables import NAMES, STATE, ChangedTable, build, by_name, key

BRIEFLY = settings(max_examples=80, deadline=None)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    known = [draw(shapes()) for _ in range(3)]
    steps: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(0, 30))):
        what = draw(
            st.sampled_from(
                ["node", "node", "gone", "allocation", "allocation", "allocation", "drop", "look", "relabel"]
            )
        )
        if what == "node":
            steps.append((what, draw(nodes(draw(st.sampled_from(NAMES))))))
        elif what == "gone":
            steps.append((what, draw(st.sampled_from(NAMES))))
        elif what == "allocation":
            identity = draw(identities)
            steps.append(
                (what, draw(st.integers(0, 7)), draw(st.sampled_from(NAMES)), draw(st.sampled_from(known)), identity)
            )
        elif what == "drop":
            steps.append((what, draw(st.integers(0, 7))))
        elif what == "relabel":
            steps.append((what, draw(identities), draw(labels)))
        else:
            steps.append((what,))
    return steps


PROFILE = default_profile()
CURVE = Curve((CurvePoint(0, 0), CurvePoint(50, 10), CurvePoint(100, 2)))
RATIO = ScoringStrategy("RequestedToCapacityRatio", (Weighed("cpu", 3), Weighed("memory")), CURVE)
FILTERS: tuple[FilterPlugin, ...] = (
    InterPodAffinity(),
    PodTopologySpread(),
    PoolFit(),
    NodeName(),
    VMQuota(VMQuotaArgs(quota=2)),
    Quota(QuotaArgs(namespaces={"default": {"cpu": "1.5", "instances": 5}})),
    LoadAware(LoadAwareArgs(usage_thresholds={"cpu": 40, "memory": 80})),
    NodeResourcesFit(),
)
KEPT: tuple[ScorePlugin, ...] = (
    InterPodAffinity(),
    PodTopologySpread(),
    Proximity(),
    NodeResourcesFit(),
    NodeResourcesBalancedAllocation(),
    NodeResourcesFit(NodeResourcesFitArgs(scoring_strategy=RATIO)),
)
"""Profiles whose counts are cached between decisions."""


@BRIEFLY
@given(steps=histories(), cluster=clusters())
def test_what_is_counted_change_by_change_equals_what_is_counted_anew(steps: Any, cluster: Any) -> None:
    told, request = ChangedTable(), cluster[2]
    for step in steps:
        if step[0] == "look":  # counters that are asked for early are kept, too
            answers(told.table, request, KEPT)
        else:
            told.apply(*step)
    fresh, scorers = told.anew(), (*KEPT, ImageLocality(), Fragmentation(), BinPack())
    assert answers(told.table, request, scorers) == answers(fresh, request, scorers)
    assert decide(PROFILE, request, told.table.snapshot()) == decide(PROFILE, request, fresh.snapshot())


def answers(
    table: Table, request: PlacementRequest, scorers: Iterable[ScorePlugin]
) -> dict[tuple[str, int], dict[str, Any]]:
    """Of every filter and these scores, by node."""
    nodes, everyone = table.snapshot(), np.ones(len(table), dtype=bool)
    said: list[tuple[str, Any]] = [(each.name, each.filter(STATE, request, nodes)) for each in FILTERS]
    said += [(each.name, each.score(STATE, request, nodes, everyone)) for each in scorers]
    return {(name, place): by_name(table, found) for place, (name, found) in enumerate(said)}


@pytest.mark.req("S3-20")
@BRIEFLY
@given(cluster=clusters(), order=st.randoms(use_true_random=False))
def test_equal_clusters_give_equal_placements_whatever_the_order_of_changes(cluster: Any, order: Any) -> None:
    found, placed, request = cluster
    first = decide(PROFILE, request, build(found, placed).snapshot())
    table = Table()
    told: list[Any] = [*found, *enumerate(placed)]
    order.shuffle(told)
    for each in told:
        if isinstance(each, Node):
            table.set_node(each)
        else:
            table.set_allocation(key(each[0]), *each[1])
    again = decide(PROFILE, request, table.snapshot())
    assert (again.node, again.relaxed, again.message) == (first.node, first.relaxed, first.message)


@pytest.mark.req("S3-23", "S3-45")
@BRIEFLY
@given(cluster=clusters())
def test_rules_that_are_not_musts_never_leave_anybody_waiting(cluster: Any) -> None:
    found, placed, request = cluster
    mild = [
        (name, replace(shape, must=(), dedicated=False, known={}, affinity_cache={}), identity)
        for name, shape, identity in placed
    ]
    soft = replace(request.shape, must=(), known={}, affinity_cache={}, dedicated=False, pool=None)
    free = replace(soft, should=(), prefer=(), known={}, affinity_cache={})
    asked = structs.replace(request, shape=soft, dropped=0, lenient=False)
    unbound = structs.replace(request, shape=free, dropped=0, lenient=True)
    snapshot = build(found, mild).snapshot()
    assert bool(decide(PROFILE, asked, snapshot).node) == bool(decide(PROFILE, unbound, snapshot).node)
