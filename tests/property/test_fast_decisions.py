"""Fast decisions equal plain ones, for every built-in plugin and over random histories of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Capabilities, Node
from mandor.placement.built_in import DEFAULTS, OPTIONAL
from mandor.placement.cycle import decide
from mandor.placement.decision import Decision
from mandor.placement.fast import FAST, FastDecider
from mandor.placement.framework.allocation import Weighed
from mandor.placement.framework.cached_columns import At
from mandor.placement.framework.capacity_columns import EXACT_BELOW
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.dry_run import DryRun
from mandor.placement.framework.handle import DETACHED
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.incremental import IncrementalFilter, IncrementalPlugin, IncrementalScore, Reach
from mandor.placement.framework.occupancy import AllocationTerms, Rank
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
    whole_part,
)
from mandor.placement.framework.profile import Enabled, Profile
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.snapshot import NodeView, Snapshot
from mandor.placement.framework.tie_break import tie_breaks
from mandor.placement.framework.watch import Unwatched
from mandor.placement.plugin_reach import plan
from mandor.placement.plugins.inter_pod_affinity import InterPodAffinity, InterPodAffinityArgs
from mandor.placement.plugins.load_aware import LoadAware, LoadAwareArgs
from mandor.placement.plugins.node_resources_balanced_allocation import (
    NodeResourcesBalancedAllocation,
    NodeResourcesBalancedAllocationArgs,
)
from mandor.placement.plugins.node_resources_fit import NodeResourcesFit, NodeResourcesFitArgs, ScoringStrategy
from mandor.placement.plugins.pod_topology_spread import PodTopologySpread, PodTopologySpreadArgs
from mandor.placement.plugins.quota import Quota, QuotaArgs
from mandor.placement.plugins.vm_quota import VMQuota, VMQuotaArgs
from mandor.placement.table import Table
from tests.property.neighbourhood import identities, nodes, shapes
from tests.property.tables import NAMES
from tests.scenarios.make import MI, make_node, make_template

GI = 1024 * MI


class OddNames(FilterPlugin, ScorePlugin):
    """One node at a time, and says nothing of its reach."""

    name = "OddNames"

    def filter_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> bool:
        return view.name != "n3"

    def score_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> int:
        return int(view.free["cpu"]) % 100


class Roomy(PreFilterPlugin, IncrementalFilter, PreScorePlugin, IncrementalScore):
    """By the room on each node, in vectors."""

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
    """Names nodes, by what they are."""

    name = "Named"

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ATTRIBUTES

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Only | Skip | None:
        return Only(frozenset(NAMES[:4])) if request.shape.counted[0] > 200 else SKIP


class Relative(IncrementalScore):
    """By what nodes are, put in relation to the feasible ones."""

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
    """The defaults, with these beside or instead of them."""
    named = {each.name: each for each in others}
    usual = [Enabled(named.pop(cls.name, made(cls)), weights.get(cls.name, weight)) for cls, weight in DEFAULTS]
    return Profile("default", [*usual, *(Enabled(each, weights.get(each.name, 1)) for each in named.values())])


def without(*names: str) -> Profile:
    return Profile("default", [Enabled(made(cls), weight) for cls, weight in DEFAULTS if cls.name not in names])


def first_wins() -> Profile:
    return Profile("default", [Enabled(made(cls), weight) for cls, weight in DEFAULTS], ties="first")


CPU_ONLY = (Weighed("cpu", 3),)
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
FILES = sorted(PROFILES)


def long_way(name: str) -> Profile:
    profile = PROFILES[name]()
    profile.local = False
    return profile


WAYS = {name: (PROFILES[name](), long_way(name)) for name in FILES}


@st.composite
def sizes(draw: st.DrawFn) -> Shape:
    """Beside the rules: all sizes, devices, ports."""
    fields: dict[str, Any] = {
        "cpu": f"{draw(st.sampled_from([0, 1, 100, 250, 999]))}m",
        "memory": draw(st.sampled_from([0, 1, 10 * MI, 64 * MI, 10**14])),
    }
    if draw(st.integers(0, 3)) == 0:
        fields["ports"] = {"http": {"port": 80, "host": draw(st.sampled_from([80, 81, "auto"]))}}
    made = Shape.of(make_template(**fields))
    devices = (("gpu", 1),) if draw(st.integers(0, 3)) == 0 else ()
    return replace(made, wanted=made.wanted + devices, machine=draw(st.booleans()))


def key(index: int) -> Key:
    return Key(Instance.kind, "default", f"web-{index}")


def unusual(name: str) -> list[Node]:
    return [
        make_node(name, cpu=10**6, memory=EXACT_BELOW + 12345, labels={"zone": "a"}),
        make_node(name, cpu=2, memory=GI, devices={"gpu": 2}),
    ]


def able(node: Node) -> Node:
    """Return the node with an engine that runs images."""
    engines = {"process": Capabilities(images=False), "docker": Capabilities(images=True)}
    return node.changed(status=structs.replace(node.status, engines=engines))


def said(decision: Decision) -> tuple[object, ...]:
    """Return all fields but the blamed plugins, as both profiles have plugins of their own."""
    told = decision.node, decision.relaxed, decision.message, decision.fault
    return *told, decision.nominated, decision.victims, decision.displaces


class Course:
    """A random history of a table, with each decision made the fast way and the plain way."""

    def __init__(self, data: st.DataObject, name: str) -> None:
        self.quick, self.long = WAYS[name]
        self.fast = FastDecider()
        self.data = data
        self.table = Table(data.draw(st.sampled_from(["", "seed"])))
        for each in NAMES[: data.draw(st.integers(1, 6))]:
            self.table.set_node(able(data.draw(nodes(each))))
        self.shapes = [data.draw(sizes() | shapes()) for _ in range(3)]
        self.people = [data.draw(identities) for _ in range(2)]
        self.count = self.placed = 0

    def step(self) -> None:
        draw = self.data.draw
        what = draw(
            st.sampled_from(["place"] * 12 + ["node", "gone", "end", "end", "burst", "relabel", "trial", "unusual"])
        )
        if what == "node":
            self.table.set_node(able(draw(nodes(draw(st.sampled_from(NAMES))))))
        elif what == "unusual":
            self.table.set_node(able(draw(st.sampled_from(unusual(draw(st.sampled_from(NAMES)))))))
        elif what == "gone" and len(self.table) > 1:
            self.table.remove_node(self.table.snapshot().nodes[0].meta.name)
        elif what == "end" and self.table.allocations:
            self.table.drop_allocation(next(iter(self.table.allocations)))
        elif what == "burst":
            self.burst(draw(st.sampled_from([5, 30, 90])))
        elif what == "relabel":
            self.relabel(*self.people)
        elif what == "trial":
            with self.table.trial():
                self.burst(3)
                self.place(keep=True)
        elif what == "place":
            self.place(keep=draw(st.integers(0, 9)) > 0)

    def relabel(self, before: Identity, after: Identity) -> None:
        for each, known in list(self.table.allocations.items()):
            if known.identity == before:
                self.table.set_allocation(each, known.node, known.shape, after, known.terms)

    def burst(self, count: int) -> None:
        """Allocate and free instances of other classes."""
        for index in range(count):
            node = NAMES[index % len(NAMES)]
            self.table.set_allocation(key(-1 - index), node, self.shapes[index % 3], self.people[index % 2])
        for index in range(0, count, 2):
            self.table.drop_allocation(key(-1 - index))

    def check_refusal(self, request: PlacementRequest, found: Decision) -> None:
        """A cached refusal is the one that a decision gives; a later change of the table makes it void."""
        known = self.fast.refusal(request, self.table.version)
        assert known is None or (known == found and not found.node)
        self.fast.remember(self.quick, request, found, self.table.version)
        replica = structs.replace(request, key=key(100_000 + self.count))
        again = self.fast.refusal(replica, self.table.version)
        assert again is None or said(again) == said(decide(self.quick, replica, self.table.snapshot()))

    def place(self, *, keep: bool) -> None:
        draw = self.data.draw
        shape = self.shapes[draw(st.sampled_from([0, 0, 0, 1, 1, 2]))]
        avoid = frozenset(draw(st.sampled_from([(), (), (), ("n1",), ("n0", "n2")])))
        self.count += 1
        pin = draw(st.sampled_from(["", "", "", "", "n1"]))
        priority, nominated = draw(st.sampled_from([(0, ""), (0, ""), (5, ""), (9, ""), (9, "n1")]))
        identity = draw(st.sampled_from(self.people))
        request = PlacementRequest(key(self.count), shape, priority, identity=identity, avoid=avoid, pin=pin)
        expected = decide(self.long, request, self.table.snapshot(), nominated=nominated, fast=None)
        found = decide(self.quick, request, self.table.snapshot(), nominated=nominated)
        plain = decide(self.quick, request, self.table.snapshot(), nominated=nominated, fast=None)
        assert said(found) == said(expected)
        assert said(plain) == said(expected)
        assert found.fault == ""
        if not nominated:
            self.check_refusal(request, found)
        quick, long = (
            DryRun(each, request, self.table.snapshot(), Unwatched(), quick=FAST.first)
            for each in (self.quick, self.long)
        )
        assert quick.place() == long.place()
        self.placed += bool(found.node)
        if keep and found.node:
            self.table.set_allocation(
                request.key, found.node, shape, identity, AllocationTerms(Rank(priority), born=float(self.count))
            )


def run_course(data: st.DataObject, name: str) -> None:
    course = Course(data, name)
    for _ in range(data.draw(st.integers(3, 25))):
        course.step()


@pytest.mark.req("S3-20")
@pytest.mark.parametrize("name", FILES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_fast_decisions_equal_plain_ones(name: str, data: st.DataObject) -> None:
    run_course(data, name)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_fast_decisions_of_the_default_profile_equal_plain_ones(data: st.DataObject) -> None:
    run_course(data, "default")


def test_every_plugin_of_the_package_is_in_one_of_these_profiles() -> None:
    used = {each.plugin.name for quick, _ in WAYS.values() for each in quick.enabled}
    assert used >= {cls.name for cls, _ in DEFAULTS} | {cls.name for cls in OPTIONAL}


whole = st.integers(0, EXACT_BELOW - 1)


@settings(max_examples=300, deadline=None)
@given(capacity=st.integers(1, EXACT_BELOW - 1), taken=st.integers(0, 2**53), data=st.data())
@example(capacity=EXACT_BELOW - 1, taken=1, data=None)
def test_floating_point_gives_the_whole_part_that_whole_numbers_give(
    capacity: int, taken: int, data: st.DataObject | None
) -> None:
    left = max(capacity - taken % (capacity + 1), 0)
    near = [left, max(0, capacity - 1), capacity, 0, 1, capacity // 3, 2 * capacity // 3]
    if data is not None:  # quotients as close below a whole number as can be
        near.append(data.draw(st.integers(0, 100)) * capacity // 100)
    for each in near:
        assert int(float(100 * each) / float(capacity)) == 100 * each // capacity
    dividends = np.array([100 * each for each in near], dtype=np.int64)
    assert whole_part(dividends, capacity).tolist() == [100 * each // capacity for each in near]


@settings(max_examples=200, deadline=None)
@given(
    cpu=st.lists(whole, min_size=4, max_size=4),
    memory=st.lists(whole, min_size=4, max_size=4),
    formula=st.sampled_from(["change", "state"]),
)
def test_resource_formulas_equal_the_scores_of_their_plugins(
    cpu: list[int], memory: list[int], formula: Literal["change", "state"]
) -> None:
    """Capacity, two that are placed, and one that asks; as large and as odd as they may be."""
    table = Table()
    table.set_node(make_node("n0", cpu=max(cpu) / 1000, memory=max(memory)))
    for index in range(3):
        shape = Shape.of(make_template(cpu=f"{cpu[index] // 4}m", memory=memory[index] // 4))
        table.set_allocation(key(index), "n0", shape)
    request = PlacementRequest(key(9), Shape.of(make_template(cpu=f"{cpu[3] // 4}m", memory=memory[3] // 4)))
    seen, everyone = table.snapshot(), np.ones(1, dtype=np.bool_)
    profile = WAYS["weights" if formula == "change" else "balance as it is"][0]
    usual = plan(profile, CycleState(), request, seen, Unwatched()).formulas
    if usual is None:
        assert 0 in {max(cpu), max(memory)}, "only a node without CPU or memory is judged otherwise"
        return
    fit = NodeResourcesFit()
    balanced = NodeResourcesBalancedAllocation(NodeResourcesBalancedAllocationArgs(formula=formula))
    expected = 5 * int(fit.score(CycleState(), request, seen, everyone)[0])
    if any(name in {"cpu", "memory"} for name, _ in request.shape.wanted):
        expected += 3 * int(balanced.score(CycleState(), request, seen, everyone)[0])
    if not fit.filter(CycleState(), request, seen)[0]:
        expected = -1
    kind = np.dtype(np.int32)
    at = np.zeros(64, dtype=np.intp)
    assert usual.one(seen, 0) == expected
    assert usual.all(seen, kind).tolist() == [expected]
    assert usual.some(seen, at, kind).tolist() == [expected] * 64
    assert usual.some(seen, at[:3], kind).tolist() == [expected] * 3


@settings(deadline=None)
@given(count=st.integers(1, 300), workload=st.text(max_size=5))
def test_no_two_nodes_have_the_same_lot(count: int, workload: str) -> None:
    order = np.random.default_rng(count).permutation(count).astype(np.uint32)
    assert len(set(tie_breaks(Identity("default", workload, "main"), order, count).tolist())) == count
