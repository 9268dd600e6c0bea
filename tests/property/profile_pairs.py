"""Profiles of every built-in plugin and of plugins from outside, each in a fast form and in a plain one."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from mandor.placement.built_in import DEFAULTS, OPTIONAL
from mandor.placement.framework.allocation import Weighed
from mandor.placement.framework.cached_columns import At
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.handle import DETACHED
from mandor.placement.framework.incremental import IncrementalFilter, IncrementalPlugin, IncrementalScore, Reach
from mandor.placement.framework.plugin_factory import Registered, make_plugin
from mandor.placement.framework.points import (
    SKIP,
    FilterPlugin,
    Only,
    Plugin,
    PreFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    Skip,
    scaled,
)
from mandor.placement.framework.profile import Enabled, Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import NodeView, Snapshot
from mandor.placement.plugins.inter_pod_affinity import InterPodAffinity, InterPodAffinityArgs
from mandor.placement.plugins.load_aware import LoadAware, LoadAwareArgs
from mandor.placement.plugins.node_affinity import NodeAffinity, NodeAffinityArgs
from mandor.placement.plugins.node_resources_balanced_allocation import (
    NodeResourcesBalancedAllocation,
    NodeResourcesBalancedAllocationArgs,
)
from mandor.placement.plugins.node_resources_fit import NodeResourcesFit, NodeResourcesFitArgs, ScoringStrategy
from mandor.placement.plugins.pod_topology_spread import PodTopologySpread, PodTopologySpreadArgs
from mandor.placement.plugins.quota import Quota, QuotaArgs
from mandor.placement.plugins.vm_quota import VMQuota, VMQuotaArgs
from tests.property.tables import NAMES
from tests.scenarios.make import MI


class OddNames(FilterPlugin, ScorePlugin):
    """Checks one node at a time and declares no reach."""

    name = "OddNames"

    def filter_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> bool:
        return view.name != "n3"

    def score_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> int:
        return int(view.free["cpu"]) % 100


class Roomy(PreFilterPlugin, IncrementalFilter, PreScorePlugin, IncrementalScore):
    """Depends on the room of each node, and returns vectors."""

    name = "Roomy"

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ROOM

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Only | Skip | None:
        return SKIP if request.shape.machine else None

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        few: Mask = nodes.instances < 4
        return few

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        return None

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        return np.minimum(nodes.instances * 7, 100)


class RoomyOneByOne(IncrementalFilter, IncrementalScore):
    name = "RoomyOneByOne"

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ROOM

    def filter_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> bool:
        return view.free["memory"] >= 0

    def score_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> int:
        return min(100, abs(view.free["memory"]) // (10 * MI))

    def filter_at(self, request: PlacementRequest, nodes: Snapshot, at: At) -> Mask:
        enough: Mask = nodes.free[1, at] >= 0
        return enough


class Named(IncrementalPlugin, PreFilterPlugin):
    """Names nodes; depends on their attributes."""

    name = "Named"

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Only | Skip | None:
        return Only(frozenset(NAMES[:4])) if request.shape.counted[0] > 200 else SKIP


class Relative(IncrementalScore):
    """Depends on attributes; the scores are scaled by the feasible nodes."""

    name = "Relative"

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def cache_key(self, request: PlacementRequest) -> None:
        return None

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        return np.array([len(node.meta.labels) for node in nodes.nodes], dtype=np.int64)

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        return scaled(scores)


def strategy(kind: str, *resources: Weighed) -> NodeResourcesFit:
    return NodeResourcesFit(NodeResourcesFitArgs(ScoringStrategy(kind, resources)))  # type: ignore[arg-type]


def made(cls: type[Plugin]) -> Plugin:
    return make_plugin(Registered(cls), DETACHED)


def with_others(*others: Plugin, **weights: int) -> Profile:
    """Return the default profile with more plugins, or with others of the same name."""
    named = {each.name: each for each in others}
    usual = [Enabled(named.pop(cls.name, made(cls)), weights.get(cls.name, weight)) for cls, weight in DEFAULTS]
    return Profile("default", [*usual, *(Enabled(each, weights.get(each.name, 1)) for each in named.values())])


def without(*names: str) -> Profile:
    return Profile("default", [Enabled(made(cls), weight) for cls, weight in DEFAULTS if cls.name not in names])


def first_wins() -> Profile:
    return Profile("default", [Enabled(made(cls), weight) for cls, weight in DEFAULTS], ties="first")


CPU_ONLY = (Weighed("cpu", 3),)
HARD = "requiredDuringSchedulingIgnoredDuringExecution"
SOFT = "preferredDuringSchedulingIgnoredDuringExecution"


def exists(key: str) -> dict[str, object]:
    return {"matchExpressions": [{"key": key, "operator": "Exists"}]}


PROFILES: dict[str, Callable[[], Profile]] = {
    "default": with_others,
    "first wins": first_wins,
    **{f"with {cls.name}": lambda cls=cls: with_others(made(cls)) for cls in OPTIONAL},  # type: ignore[misc]
    "all of them": lambda: with_others(*(made(cls) for cls in OPTIONAL)),
    "weights": lambda: with_others(NodeResourcesFit=5, NodeResourcesBalancedAllocation=3, ImageLocality=2),
    "huge weights": lambda: with_others(NodeResourcesFit=10_000_000, NodeResourcesBalancedAllocation=33_333_333),
    "most allocated": lambda: with_others(strategy("MostAllocated", Weighed("cpu", 2), Weighed("memory"))),
    "by a curve": lambda: with_others(strategy("RequestedToCapacityRatio", Weighed("memory"))),
    "least of CPU": lambda: with_others(strategy("LeastAllocated", *CPU_ONLY)),
    "memory ignored": lambda: with_others(NodeResourcesFit(NodeResourcesFitArgs(ignored_resources=("memory",)))),
    "added affinity": lambda: with_others(
        NodeAffinity(
            msgspec.convert(
                {
                    "addedAffinity": {
                        HARD: {"nodeSelectorTerms": [exists("zone"), exists("rack")]},
                        SOFT: [{"weight": 7, "preference": exists("disk")}],
                    }
                },
                NodeAffinityArgs,
            )
        )
    ),
    "balance as it is": lambda: with_others(
        NodeResourcesBalancedAllocation(NodeResourcesBalancedAllocationArgs(formula="state")),
        NodeResourcesFit=5,
        NodeResourcesBalancedAllocation=3,
    ),
    "balance of three": lambda: with_others(
        NodeResourcesBalancedAllocation(
            NodeResourcesBalancedAllocationArgs((Weighed("cpu"), Weighed("memory"), Weighed("disk")))
        )
    ),
    "system spreading": lambda: with_others(PodTopologySpread(PodTopologySpreadArgs(defaulting_type="System"))),
    "no hard pulls": lambda: with_others(InterPodAffinity(InterPodAffinityArgs(0, True))),
    "hot nodes": lambda: with_others(LoadAware(LoadAwareArgs({"cpu": 60, "memory": 70}))),
    "quotas": lambda: with_others(Quota(QuotaArgs({"default": {"cpu": "2"}})), VMQuota(VMQuotaArgs(quota=2))),
    "without fit": lambda: without("NodeResourcesFit"),
    "without balance": lambda: without("NodeResourcesBalancedAllocation"),
    "without scores of room": lambda: without("NodeResourcesBalancedAllocation", "NodeResourcesFit"),
    "from outside": lambda: with_others(OddNames(), Roomy(), RoomyOneByOne(), Named(), Relative()),
    "from outside, local": lambda: with_others(Roomy(), RoomyOneByOne(), Named(), Relative=2, Roomy=3),
}
PROFILE_NAMES = sorted(PROFILES)


def plain_profile(name: str) -> Profile:
    """Return a profile whose plugins are called for every node, whatever their reach."""
    profile = PROFILES[name]()
    profile.local = False
    return profile


WAYS = {name: (PROFILES[name](), plain_profile(name)) for name in PROFILE_NAMES}
"""The fast profile and the plain one, by name."""
