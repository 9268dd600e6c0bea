"""Algorithms to choose from: what each does to a cluster, and Kubernetes' published numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.resources import Resources
from mandor.placement.built_in import BUILT_IN, DEFAULTS
from mandor.placement.cycle import decide
from mandor.placement.decision import Decision
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.points import FilterPlugin, Plugin, ScorePlugin
from mandor.placement.framework.profile import Enabled, Profile
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.plugins.best_fit import BestFit, BestFitArgs
from mandor.placement.plugins.bin_pack import BinPack
from mandor.placement.plugins.control_plane import ControlPlane, ControlPlaneArgs
from mandor.placement.plugins.default_binder import DefaultBinder
from mandor.placement.plugins.fragmentation import Fragmentation
from mandor.placement.plugins.image_locality import ImageLocality
from mandor.placement.plugins.load_aware import LoadAware, LoadAwareArgs
from mandor.placement.plugins.node_resources_balanced_allocation import NodeResourcesBalancedAllocation
from mandor.placement.plugins.node_resources_fit import NodeResourcesFit
from mandor.placement.plugins.priority_sort import PrioritySort
from mandor.placement.plugins.proximity import Proximity
from mandor.placement.plugins.quota import Quota, QuotaArgs
from mandor.placement.plugins.round_robin import RoundRobin
from mandor.placement.plugins.vm_quota import VMQuota, VMQuotaArgs
from mandor.placement.table import Table
from tests.scenarios.make import GI, MI, make_node, make_template

STATE = CycleState()


class Cluster:
    """A table, and a profile of a few plugins that place on it."""

    def __init__(self, nodes: list[Node], *plugins: Plugin) -> None:
        self.table = Table()
        self.count = 0
        for node in nodes:
            self.table.set_node(node)
        self.profile = Profile("test", [Enabled(each) for each in (PrioritySort(), *plugins, DefaultBinder())])

    def decide(self, workload: str = "web", shape: Shape | None = None, **fields: Any) -> Decision:
        self.count += 1
        key = Key(Instance.kind, fields.pop("namespace", "default"), f"{workload}-{self.count}")
        shape = shape or Shape.of(make_template(**fields))
        request = PlacementRequest(key, shape, identity=Identity(key.namespace, workload, "main"))
        decision = decide(self.profile, request, self.table.snapshot())
        if decision.node:
            self.table.set_allocation(key, decision.node, shape, request.identity)
        return decision

    def used(self, resource: str = "memory") -> dict[str, int]:
        nodes = self.table.snapshot().nodes
        room = {
            node.meta.name: {"cpu": node.allocatable.cpu_milli, "memory": node.allocatable.memory_bytes}
            for node in nodes
        }
        return {
            name: 100 - 100 * self.table.free(name)[resource] // amounts[resource] for name, amounts in room.items()
        }


def four(**fields: Any) -> list[Node]:
    return [make_node(f"n{index}", **fields) for index in range(4)]


@pytest.mark.req("S2-15")
def test_round_robin_gives_every_node_its_turn() -> None:
    cluster = Cluster(four(), RoundRobin())
    rounds = [[cluster.decide().node for _ in range(4)] for _ in range(3)]
    assert all(sorted(each) == ["n0", "n1", "n2", "n3"] for each in rounds)
    assert rounds[0] == rounds[1] == rounds[2], "in the same order each time"


@pytest.mark.req("S2-15")
def test_round_robin_passes_over_nodes_without_room() -> None:
    cluster = Cluster([make_node("small", cpu=1), make_node("large", cpu=8)], RoundRobin())
    cluster.profile = Profile(
        "turns", [Enabled(each, 100) for each in (PrioritySort(), NodeResourcesFit(), RoundRobin(), DefaultBinder())]
    )
    assert sorted(cluster.decide(cpu="1").node for _ in range(4)) == ["large", "large", "large", "small"]


@pytest.mark.req("S2-15", "S3-21")
def test_bin_packing_fills_a_node_to_two_thirds_before_the_next() -> None:
    cluster = Cluster(four(memory=10 * GI, cpu=64), BinPack())
    for _ in range(14):
        cluster.decide(memory="1Gi")
    assert sorted(cluster.used().values()) == [0, 0, 70, 70]


@pytest.mark.req("S3-21")
def test_the_target_of_packing_is_a_peak_and_not_a_cap() -> None:
    cluster = Cluster([make_node("n0", memory=10 * GI, cpu=64)], BinPack())
    assert all(cluster.decide(memory="1Gi").node == "n0" for _ in range(10)), "a full node is better than none"


@pytest.mark.req("S2-15")
def test_most_allocated_fills_one_node_and_least_allocated_spreads() -> None:
    most = Cluster(four(), make("NodeResourcesFit", {"scoringStrategy": {"type": "MostAllocated"}}))
    least = Cluster(four(), NodeResourcesFit())
    for _ in range(4):
        most.decide(cpu="1", memory="1Gi")
        least.decide(cpu="1", memory="1Gi")
    assert sorted(most.used("cpu").values()) == [0, 0, 0, 100]
    assert sorted(least.used("cpu").values()) == [25, 25, 25, 25]


def make(name: str, args: dict[str, Any]) -> Any:
    cls: Any = BUILT_IN[name]
    return cls(msgspec.convert(args, cls.Args))


def room_score(plugin: ScorePlugin, node: Node, taken: tuple[int, int], asked: tuple[int, int]) -> int:
    table = Table()
    table.set_node(node)
    if any(taken):
        table.set_allocation(Key(Instance.kind, "default", "old"), node.meta.name, sized(*taken))
    request = PlacementRequest(Key(Instance.kind, "default", "new"), sized(*asked))
    return int(plugin.score(STATE, request, table.snapshot(), np.ones(1, dtype=bool))[0])


def sized(cpu: int, memory: int) -> Shape:
    return Shape.of(make_template(cpu=f"{cpu}m", memory=str(memory)))


@pytest.mark.req("S0-10")
@pytest.mark.parametrize(
    ("capacity", "taken", "asked", "score"),
    [
        ((4000, 10_000), (0, 0), (3000, 5000), 62),
        ((6000, 10_000), (0, 0), (3000, 5000), 50),
        ((10_000, 20_000), (3000, 5000), (3000, 5000), 55),
        ((10_000, 20_000), (6000, 10_000), (3000, 5000), 82),
        ((4000, 10_000), (3000, 5000), (3000, 8000), 100),
    ],
)
def test_most_allocated_gives_kubernetes_numbers(
    capacity: tuple[int, int], taken: tuple[int, int], asked: tuple[int, int], score: int
) -> None:
    plugin = make("NodeResourcesFit", {"scoringStrategy": {"type": "MostAllocated"}})
    node = make_node("n", cpu=capacity[0] / 1000, memory=capacity[1] * MI)
    assert room_score(plugin, node, (taken[0], taken[1] * MI), (asked[0], asked[1] * MI)) == score


@pytest.mark.req("S0-10")
@pytest.mark.parametrize(
    ("capacity", "asked", "score"),
    [((4000, 10_000), (3000, 5000), 87), ((6000, 10_000), (3000, 5000), 100), ((10_000, 20_000), (6000, 0), 70)],
)
def test_balanced_allocation_gives_the_numbers_of_kubernetes_1_35(
    capacity: tuple[int, int], asked: tuple[int, int], score: int
) -> None:
    """Shares of 75 % and 50 %: (1 - 0.25 / 2) * 100, rounded down."""
    node = make_node("n", cpu=capacity[0] / 1000, memory=capacity[1] * MI)
    plugin = make("NodeResourcesBalancedAllocation", {"formula": "state"})
    assert room_score(plugin, node, (0, 0), (asked[0], asked[1] * MI)) == score


@pytest.mark.req("S0-10")
@pytest.mark.parametrize(
    ("taken", "asked", "score"),
    [
        ((0, 0), (5000, 10_000), 75),  # the balance stays: 100
        ((0, 0), (10_000, 0), 50),  # from 100 to 50, the worst
        ((10_000, 0), (0, 20_000), 100),  # from 50 to 100, the best
        ((6000, 0), (0, 5000), 81),  # from 70 to 82: (50 + 12) / 2 above 50
        ((0, 0), (3000, 5000), 73),  # from 100 to 97: 47 / 2, rounded down, above 50
    ],
)
def test_balanced_allocation_gives_the_numbers_of_kubernetes_1_36(
    taken: tuple[int, int], asked: tuple[int, int], score: int
) -> None:
    node = make_node("n", cpu=10, memory=20_000 * MI)
    plugin = NodeResourcesBalancedAllocation()
    assert room_score(plugin, node, (taken[0], taken[1] * MI), (asked[0], asked[1] * MI)) == score


@pytest.mark.req("S0-10")
def test_the_balance_prefers_the_node_that_an_instance_balances() -> None:
    """Both nodes end equally balanced; the first was unbalanced before."""
    lopsided = make_node("lopsided", cpu=10, memory=20_000 * MI)
    before, after = (5000, 4000 * MI), (5000, 8000 * MI)
    plugin, old = NodeResourcesBalancedAllocation(), make("NodeResourcesBalancedAllocation", {"formula": "state"})
    scores = [room_score(plugin, lopsided, taken, (0, 4000 * MI)) for taken in (before, after)]
    assert scores[0] > scores[1]
    assert room_score(old, lopsided, before, (0, 4000 * MI)) == room_score(old, lopsided, after, (0, 4000 * MI))


@pytest.mark.req("S0-10")
@pytest.mark.parametrize(("asked", "score"), [((3000, 5000), 38), ((0, 0), 100)])
def test_requested_to_capacity_ratio_gives_kubernetes_numbers(asked: tuple[int, int], score: int) -> None:
    """A curve from 10 at 0 % down to 0 at 100 %: 25 for CPU and 50 for memory, and their mean rounded."""
    curve = {"shape": [{"utilization": 0, "score": 10}, {"utilization": 100, "score": 0}]}
    plugin = make(
        "NodeResourcesFit",
        {"scoringStrategy": {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": curve}},
    )
    node = make_node("n", cpu=4, memory=10_000 * MI)
    assert room_score(plugin, node, (0, 0), (asked[0], asked[1] * MI)) == score


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("NodeResourcesFit", {"scoringStrategy": {"type": "Best"}}),
        ("NodeResourcesFit", {"scoringStrategy": {"resources": [{"name": "cpu", "weight": 101}]}}),
        ("NodeResourcesFit", {"scoringStrategy": {"resources": []}}),
        ("NodeResourcesFit", {"scoringStategy": {}}),
        ("BinPack", {"low": 80, "high": 70}),
        ("BinPack", {"resource": "memroy"}),
        ("Quota", {"namespaces": {"a": {"memroy": "1Gi"}}}),
        ("LoadAware", {"usageThresholds": {"disk": 50}}),
        ("PodTopologySpread", {"defaultingType": "System", "defaultConstraints": [{"topologyKey": "zone"}]}),
        ("PodTopologySpread", {"defaultConstraints": [{"topologyKey": "zone", "maxSkew": 0}]}),
        ("InterPodAffinity", {"hardPodAffinityWeight": 101}),
        ("Quota", {"namespaces": {"a": {"cpu": "many"}}}),
        ("Quota", {"namespaces": {"a": {"instances": 1.5}}}),
        ("VMQuota", {"quota": -1}),
        ("BestFit", {"cpu": -1}),
        ("BestFit", {"cpu": 0, "memory": 0, "machines": 0}),
        ("Fragmentation", {"shapes": 0}),
        ("Proximity", {"over": []}),
        ("NodeResourcesBalancedAllocation", {"resources": [{"name": "cpu", "weight": 5}]}),
    ],
)
def test_invalid_arguments_are_refused(name: str, args: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        make(name, args)


def test_best_fit_accepts_nodes_without_capacity() -> None:
    cluster = Cluster([make_node("n1", memory=0), make_node("n2", memory=0)], BestFit(BestFitArgs(1000, 1000, 1000)))
    found = [cluster.decide() for _ in range(3)]
    assert {each.node for each in found} == {found[0].node}
    assert [each.fault for each in found] == ["", "", ""]


def test_load_aware_scores_usage_instead_of_requests() -> None:
    def measured(name: str, memory: int) -> Node:
        node = make_node(name)
        return node.changed(status=msgspec.structs.replace(node.status, usage=Resources(100, memory, 0)))

    cluster = Cluster([measured("modest", 7 * GI), measured("greedy", GI)], LoadAware())
    cluster.table.set_allocation(Key(Instance.kind, "default", "old"), "greedy", sized(3000, 7 * GI))
    cluster.table.set_node(measured("greedy", 2 * GI))
    assert cluster.decide().node == "greedy", "it asked for much and uses little"
    found = [cluster.decide(memory="1Gi").node for _ in range(8)]
    assert set(found) == {"modest", "greedy"}, "what was placed since the last measure counts, too"


def test_load_aware_refuses_nodes_above_the_threshold() -> None:
    node = make_node("n0")
    hot = node.changed(status=msgspec.structs.replace(node.status, usage=Resources(100, 8 * GI, 0)))
    cluster = Cluster([hot], LoadAware(LoadAwareArgs(usage_thresholds={"memory": 90})))
    assert cluster.decide().message == "0/1 nodes fit: 1 LoadAware (uses more than 90 % of its memory)"


@pytest.mark.req("S3-22")
def test_proximity_places_communicating_instances_on_one_node() -> None:
    def crossing(*plugins: ScorePlugin) -> int:
        cluster = Cluster(four(), *plugins)
        pairs = []
        for index in range(8):
            near = [{"workload": f"db{index}", "over": "zone", "strength": "prefer"}]
            pairs.append(
                (cluster.decide(f"db{index}").node, cluster.decide(f"web{index}", placement={"near": near}).node)
            )
        return sum(one != other for one, other in pairs)

    assert crossing(Proximity()) == 0
    assert crossing(NodeResourcesFit()) > 4


def test_fragmentation_leaves_cpus_of_gpu_nodes_free() -> None:
    def cluster(*plugins: ScorePlugin) -> Cluster:
        made = Cluster([make_node("gpu", cpu=8, devices={"gpu": 4}), make_node("plain", cpu=8)])
        fit = Enabled(NodeResourcesFit())
        chosen = [Enabled(PrioritySort()), fit, *(Enabled(each, 100) for each in plugins), Enabled(DefaultBinder())]
        made.profile = Profile("careful", chosen)
        made.table.set_allocation(Key(Instance.kind, "default", "ai"), "gpu", with_gpu)
        return made

    plain = Shape.of(make_template(cpu="1"))
    with_gpu = replace(plain, wanted=(("cpu", 2000), ("gpu", 1)))
    careful = cluster(Fragmentation())
    assert {careful.decide(shape=plain).node for _ in range(6)} == {"plain"}
    assert [careful.decide(shape=with_gpu).node for _ in range(3)] == ["gpu"] * 3, "all four GPUs can be used"
    careless = cluster()
    assert "gpu" in {careless.decide(shape=plain).node for _ in range(6)}
    assert "" in [careless.decide(shape=with_gpu).node for _ in range(3)]


@pytest.mark.req("S2-13")
def test_a_quota_limits_its_namespace_and_is_named_in_the_refusal() -> None:
    limits = QuotaArgs(namespaces={"team-a": {"cpu": "2", "instances": 5}, "*": {"instances": 1}})
    cluster = Cluster(four(), Quota(limits))
    assert [bool(cluster.decide(namespace="team-a", cpu="1").node) for _ in range(3)] == [True, True, False]
    assert cluster.decide(namespace="team-a", cpu="500m").message == (
        "0/4 nodes fit: 4 Quota (the quota of the namespace team-a is exceeded by 500m cpu)"
    )
    assert cluster.decide(namespace="team-a").node, "what asks for no CPU is not refused for lack of it"
    assert [bool(cluster.decide(namespace="b").node) for _ in range(2)] == [True, False]
    (first, *_) = [each for each in cluster.table.allocations if each.namespace == "team-a"]
    cluster.table.drop_allocation(first)
    assert cluster.decide(namespace="team-a", cpu="1").node


def test_a_node_takes_virtual_machines_up_to_its_quota() -> None:
    shape = of_a_machine()
    assert shape.machine
    cluster = Cluster([make_node("n0", facts={"vm.quota": "2"}), make_node("n1")], VMQuota(VMQuotaArgs(quota=1)))
    assert sorted(cluster.decide(shape=shape).node for _ in range(3)) == ["n0", "n0", "n1"]
    assert cluster.decide(shape=shape).message == ("0/2 nodes fit: 2 VMQuota (as many virtual machines as it may hold)")
    assert cluster.decide().node, "a container is none"


def of_a_machine() -> Shape:
    machine = make_template(image="images:debian/13")
    task = msgspec.structs.replace(machine.tasks["main"], options={"incus": {"type": "virtual-machine"}})
    return Shape.of(msgspec.structs.replace(machine, tasks={"main": task}))


@pytest.mark.req("S4-39", "S4-42")
def test_the_control_plane_s_own_machines_take_no_virtual_machines() -> None:
    nodes = [make_node("seed", labels={"control-plane": "true"}), make_node("work", labels={"control-plane": "false"})]
    apart = Cluster(nodes, ControlPlane(), NodeResourcesFit())
    shape = of_a_machine()
    assert [apart.decide(shape=shape).node for _ in range(3)] == ["work"] * 3
    assert apart.decide().node, "what is no virtual machine goes where taints let it"
    alone = Cluster(nodes[:1], ControlPlane())
    assert alone.decide(shape=shape).message == "0/1 nodes fit: 1 ControlPlane (carries the control plane)"


@pytest.mark.req("S4-42")
def test_co_located_the_control_plane_s_machines_come_last() -> None:
    nodes = [make_node("seed", labels={"control-plane": "yes"}), make_node("work")]
    plugins = (ControlPlane(ControlPlaneArgs(colocated=True)), VMQuota(VMQuotaArgs(quota=2)))
    cluster = Cluster(nodes)
    enabled = [Enabled(PrioritySort()), Enabled(plugins[0], 100), Enabled(plugins[1]), Enabled(DefaultBinder())]
    cluster.profile = Profile("test", enabled)
    shape = of_a_machine()
    assert [cluster.decide(shape=shape).node for _ in range(4)] == ["work", "work", "seed", "seed"]


@pytest.mark.req("S0-10")
def test_image_locality_gives_kubernetes_numbers() -> None:
    """One of two nodes has 250 MB of two images' 1000 MB each: (125 - 23) * 100 / (2000 - 23) = 5."""
    first, second = make_node("n0"), make_node("n1")
    held = msgspec.structs.replace(first.status, images={"gcr.io/250:latest": 250 * MI})
    table = Table()
    table.set_node(first.changed(status=held))
    table.set_node(second)
    shape = Shape.of(make_template(image="gcr.io/250"))
    both = replace(shape, image_names=("gcr.io/40", "gcr.io/250"))
    request = PlacementRequest(Key(Instance.kind, "default", "new"), both)
    assert ImageLocality().score(STATE, request, table.snapshot(), np.ones(2, dtype=bool)).tolist() == [5, 0]


def test_every_plugin_has_a_name_of_its_own_and_the_defaults_are_kubernetes_with_their_weights() -> None:
    assert all(cls.name == name for name, cls in BUILT_IN.items())
    weights = {cls.name: weight for cls, weight in DEFAULTS if issubclass(cls, ScorePlugin)}
    assert weights == {
        "Reservation": 10,
        "EngineFit": 1,
        "TaintToleration": 3,
        "NodeAffinity": 2,
        "NodeResourcesFit": 1,
        "VolumeBinding": 1,
        "PodTopologySpread": 2,
        "InterPodAffinity": 2,
        "NodeResourcesBalancedAllocation": 1,
        "ImageLocality": 1,
    }
    assert {"NodeUnschedulable", "NodeName", "NodePorts", "PoolFit"} <= {
        cls.name for cls, _ in DEFAULTS if issubclass(cls, FilterPlugin)
    }
