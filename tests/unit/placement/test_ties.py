"""Rules about other instances: near, apart, spread, dedicated; and what is given up, in which order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.placement.cycle import decide
from mandor.placement.decision import Decision
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.plugins.inter_pod_affinity import InterPodAffinity
from mandor.placement.plugins.pod_topology_spread import PodTopologySpread, PodTopologySpreadArgs
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import make_node, make_template

STATE = CycleState()
PROFILE = default_profile()


class Board:
    """A table with people on it."""

    def __init__(self, *nodes: Node) -> None:
        self.table = Table()
        self.count = 0
        for node in nodes:
            self.table.set_node(node)

    def request(self, workload: str, placement: dict[str, Any] | None = None, **fields: Any) -> PlacementRequest:
        self.count += 1
        namespace = fields.pop("namespace", "default")
        identity = Identity(namespace, workload, fields.pop("group", "main"), fields.pop("labels", {}))
        shape = Shape.of(make_template(placement=placement or {}, **fields))
        return PlacementRequest(Key(Instance.kind, namespace, f"{workload}-{self.count}"), shape, identity=identity)

    def decide(self, workload: str, placement: dict[str, Any] | None = None, **fields: Any) -> Decision:
        request = self.request(workload, placement, **fields)
        decision = decide(PROFILE, request, self.table.snapshot())
        if decision.node:
            self.table.set_allocation(request.key, decision.node, request.shape, request.identity)
        return decision

    def put(self, node: str, workload: str, placement: dict[str, Any] | None = None, **fields: Any) -> Key:
        request = self.request(workload, placement, **fields)
        self.table.set_allocation(request.key, node, request.shape, request.identity)
        return request.key


def zones(**names: int) -> list[Node]:
    """`a=2`: two nodes in the zone a."""
    return [
        make_node(f"{zone}{index}", labels={"zone": zone}) for zone, count in names.items() for index in range(count)
    ]


APART = [{"workload": "self", "over": "node"}]


@pytest.mark.req("S3-31", "S3-32")
def test_copies_that_must_be_apart_take_one_node_each_and_then_wait() -> None:
    board = Board(*zones(a=2))
    assert {board.decide("db", {"apart": APART}).node for _ in range(2)} == {"a0", "a1"}
    waits = board.decide("db", {"apart": APART})
    assert waits.message == (
        "0/2 nodes fit: 2 InterPodAffinity (not apart from db/main; others there want to be apart from it)"
    )


@pytest.mark.req("S3-31")
def test_a_later_instance_respects_the_apart_rule_of_a_placed_one() -> None:
    board = Board(*zones(a=2))
    board.put("a0", "quiet", {"apart": [{"workload": "noisy"}]})
    assert {board.decide("noisy").node for _ in range(3)} == {"a1"}


@pytest.mark.req("S3-23", "S3-24", "S3-25", "S3-44", "S3-45")
def test_prometheus_and_loki_are_apart_while_they_can_be_and_never_keep_each_other_waiting() -> None:
    rule = {"apart": [{"workload": "loki", "strength": "should"}]}
    board = Board(make_node("w1", cpu=1), make_node("w2", cpu=4))
    assert board.decide("loki").node == "w2", "the emptier node"
    assert board.decide("prometheus", rule).node == "w1", "apart, though the other has more room"
    board.table.remove_node("w1")
    squeezed = board.decide("prometheus", rule)
    assert squeezed.node == "w2"
    assert squeezed.relaxed == ("apart from loki over node",)


@pytest.mark.req("S3-23", "S3-45")
def test_a_should_of_one_holds_for_the_other_that_has_no_rule_until_it_would_have_to_wait() -> None:
    board = Board(make_node("w1", cpu=1), make_node("w2", cpu=8))
    board.put("w2", "prometheus", {"apart": [{"workload": "loki", "strength": "should"}]})
    assert board.decide("loki", cpu="1").node == "w1"
    crowded = board.decide("loki", cpu="1")
    assert (crowded.node, crowded.relaxed) == ("w2", ("others want to be apart from it",))


@pytest.mark.req("S3-30", "S3-32")
def test_near_goes_where_the_others_are_and_waits_until_they_are_there() -> None:
    board = Board(*zones(a=2, b=2))
    near = {"near": [{"workload": "cache", "over": "zone"}]}
    assert board.decide("web", near).message == "0/4 nodes fit: 4 InterPodAffinity (not near cache)"
    board.put("b1", "cache")
    assert board.decide("web", near).node in {"b0", "b1"}


def test_the_first_of_a_set_that_names_itself_goes_anywhere_and_the_others_follow() -> None:
    board = Board(*zones(a=2, b=2), make_node("nowhere"))
    near = {"near": [{"workload": "self", "over": "zone"}]}
    first = board.decide("ring", near).node
    assert first != "nowhere", "it has no zone to be near in"
    assert {board.decide("ring", near).node[0] for _ in range(5)} == {first[0]}


def test_rules_by_labels_stay_in_the_namespace_unless_they_name_others() -> None:
    board = Board(*zones(a=2))
    board.put("a0", "shop", labels={"app": "shop"}, namespace="team-b")
    match = {"match": {"app": "shop"}}
    assert {board.decide("x", {"apart": [match]}).node for _ in range(4)} == {"a0", "a1"}
    assert {board.decide("y", {"apart": [{**match, "namespaces": ["team-b"]}]}).node for _ in range(4)} == {"a1"}
    assert {board.decide("z", {"apart": [{**match, "namespaces": ["*"]}]}).node for _ in range(4)} == {"a1"}


def test_a_group_of_a_workload_can_be_named() -> None:
    board = Board(*zones(a=2))
    board.put("a0", "shop", group="db")
    board.put("a1", "shop", group="web")
    near = {"near": [{"workload": "shop", "group": "db"}]}
    assert {board.decide("x", near).node for _ in range(3)} == {"a0"}


@pytest.mark.req("S3-30", "S3-31", "S3-32")
def test_preferences_weigh_and_do_not_bind() -> None:
    board = Board(make_node("n1", cpu=8), make_node("n2", cpu=8))
    board.put("n1", "cache", cpu="1")
    near = {"near": [{"workload": "cache", "strength": "prefer", "weight": 10}]}
    assert board.decide("web", near, cpu="6").node == "n1"
    assert board.decide("web", near, cpu="6").node == "n2", "there is no room near it any more"


def test_spread_keeps_domains_even_and_shows_why_not() -> None:
    board = Board(*zones(a=3, b=1), make_node("nowhere"))
    spread = {"spread": [{"over": "zone", "max_skew": 1}]}
    found = [board.decide("web", spread, cpu="2").node for _ in range(4)]
    assert sorted(name[0] for name in found) == ["a", "a", "b", "b"]
    board.decide("web", spread, cpu="1")
    assert board.decide("web", spread, cpu="2").message == (
        "0/5 nodes fit: 4 PodTopologySpread (no `zone`), 1 NodeResourcesFit (short of 2 cpu)"
    )


def test_spread_counts_only_domains_that_its_node_rules_allow() -> None:
    board = Board(*zones(a=1, b=1, c=1))
    rules = {"spread": [{"over": "zone"}], "where": [{"rule": "zone in [a, b]"}]}
    found = [board.decide("web", rules).node for _ in range(4)]
    assert sorted(found) == ["a0", "a0", "b0", "b0"], "the empty zone c holds nobody back"


def test_should_rules_of_all_kinds_are_relaxed_from_the_last() -> None:
    board = Board(make_node("n1", labels={"zone": "a"}))
    board.put("n1", "web", {})
    rules = {
        "where": [{"rule": "disk == ssd", "strength": "should"}],
        "apart": [{"workload": "self", "strength": "should"}],
        "spread": [{"over": "rack", "strength": "should"}],
    }
    assert board.decide("web", rules).relaxed == (
        "spread over rack",
        "apart from self over node",
        "disk == ssd",
    )
    turned = Board(make_node("n1"))
    turned.put("n1", "web")
    assert turned.decide("web", {**rules, "order": ["spread", "apart", "where"]}).relaxed[0] == "disk == ssd"


def test_only_the_blocking_rule_and_later_ones_are_relaxed() -> None:
    board = Board(*zones(a=1))
    board.put("a0", "web", {})
    rules = {
        "where": [{"rule": "zone == a", "strength": "should"}],
        "apart": [{"workload": "self", "strength": "should"}],
    }
    assert board.decide("web", rules).relaxed == ("apart from self over node",)


@pytest.mark.req("S3-29", "S3-32")
def test_a_pool_can_be_a_preference() -> None:
    board = Board(make_node("n1", pool="web", cpu=1), make_node("n2", pool="db", cpu=8))
    wish = {"pool": {"name": "web", "strength": "should"}}
    assert board.decide("web", wish, cpu="1").node == "n1"
    second = board.decide("web", wish, cpu="1")
    assert (second.node, second.relaxed) == ("n2", ("pool == web",))
    assert "not in the pool web" in board.decide("web", {"pool": "web"}, cpu="1").message


def test_a_dedicated_node_is_one_workloads_alone() -> None:
    board = Board(*zones(a=3))
    board.put("a0", "other")
    mine = board.decide("db", {"dedicated": True}).node
    assert mine != "a0"
    assert {board.decide("db", {"dedicated": True}).node for _ in range(6)} == {"a1", "a2"}
    assert {board.decide("web").node for _ in range(3)} == {"a0"}
    board.table.remove_node("a0")
    assert board.decide("web").message == "0/2 nodes fit: 2 PoolFit (dedicated to another workload)"
    assert board.decide("db", {"dedicated": True}).node


def test_a_dedicated_group_waits_for_a_node_without_others() -> None:
    board = Board(*zones(a=1))
    web = board.put("a0", "web")
    assert board.decide("db", {"dedicated": True}).message == (
        "0/1 nodes fit: 1 PoolFit (others are on the node that it wants for itself)"
    )
    board.table.drop_allocation(web)
    assert board.decide("db", {"dedicated": True}).node == "a0"


def test_changed_labels_change_the_matching_instances() -> None:
    board = Board(*zones(a=2))
    shop = board.put("a0", "shop", labels={"app": "shop"})
    rule = {"apart": [{"match": {"app": "shop"}}]}
    assert board.decide("x", rule).node == "a1"
    known = board.table.allocations[shop]
    board.table.set_allocation(shop, "a0", known.shape, Identity("default", "shop", "main", {"app": "bar"}))
    assert {board.decide("x", rule).node for _ in range(4)} == {"a0", "a1"}


def spread_scores(
    board: Board, request: PlacementRequest, plugin: PodTopologySpread | None = None, among: str | None = None
) -> dict[str, int]:
    plugin = plugin or PodTopologySpread()
    nodes = board.table.snapshot()
    names = [node.meta.name for node in nodes.nodes]
    feasible = np.array([among is None or name in among for name in names])
    raw = plugin.score(STATE, request, nodes, feasible)
    final = plugin.normalize(STATE, request, raw[feasible])
    return dict(zip([name for name in names if among is None or name in among], final.tolist(), strict=True))


def crowd(zone_of: dict[str, str | None], **counts: int) -> Board:
    """A node for each letter, with so many copies of `foo` on it."""
    labels = {name: {"zone": zone} if (zone := zone_of.get(name)) else {} for name in counts}
    board = Board(*(make_node(name, labels=labels[name]) for name in counts))
    for name, count in counts.items():
        for _ in range(count):
            board.put(name, "foo")
    return board


ZONES: dict[str, str | None] = {"a": "1", "b": "1", "x": "2", "y": "2"}
OVER_NODE = {"over": "node", "strength": "prefer"}
OVER_ZONE = {"over": "zone", "strength": "prefer"}


@pytest.mark.req("S0-10")
@pytest.mark.parametrize(
    ("counts", "rules", "among", "scores"),
    [
        ({"a": 2, "b": 1, "c": 0, "d": 3}, [OVER_NODE], None, [20, 60, 100, 0]),
        ({"a": 2, "b": 1, "c": 0, "d": 3}, [{**OVER_NODE, "max_skew": 2}], None, [33, 66, 100, 16]),
        ({"a": 4, "b": 3, "c": 2, "d": 1}, [{**OVER_NODE, "max_skew": 3}], None, [44, 66, 77, 100]),
        ({"a": 4, "b": 2, "x": 1, "y": 3}, [OVER_NODE], "abx", [33, 83, 100]),
        ({"a": 4, "b": 2, "x": 1, "y": 3}, [OVER_ZONE], "abx", [75, 75, 100]),
        ({"a": 2, "b": 1, "x": 2, "y": 4}, [OVER_ZONE, OVER_NODE], "ax", [100, 63]),
    ],
)
def test_spread_scores_are_kubernetes_published_numbers(
    counts: dict[str, int], rules: list[dict[str, Any]], among: str | None, scores: list[int]
) -> None:
    board = crowd(ZONES, **counts)
    assert list(spread_scores(board, board.request("foo", {"spread": rules}), among=among).values()) == scores


@pytest.mark.req("S0-10")
def test_kubernetes_own_default_spreads_over_nodes_where_there_are_no_zones() -> None:
    board = crowd({}, a=4, b=3, c=2, d=1)
    system = PodTopologySpread(PodTopologySpreadArgs(defaulting_type="System"))
    assert list(spread_scores(board, board.request("foo"), system).values()) == [44, 66, 77, 100]


@pytest.mark.req("S0-10")
def test_spread_by_default_is_kubernetes_own_when_a_profile_asks_for_it() -> None:
    board = Board(*zones(a=1, b=1))
    board.put("a0", "web")
    plain, system = PodTopologySpread(), PodTopologySpread(PodTopologySpreadArgs(defaulting_type="System"))
    request = board.request("web")
    nodes = board.table.snapshot()
    assert plain.pre_score(STATE, request, nodes, np.ones(2, dtype=bool)) is not None
    assert spread_scores(board, request, system)["b0"] > spread_scores(board, request, system)["a0"]


@pytest.mark.req("S0-10")
def test_affinity_scores_run_from_the_worst_0_to_the_best_100() -> None:
    board = Board(*zones(a=1, b=1, c=1))
    for name, count in {"a0": 2, "b0": 1}.items():
        for _ in range(count):
            board.put(name, "cache")
    request = board.request("web", {"near": [{"workload": "cache", "strength": "prefer", "weight": 5}]})
    nodes = board.table.snapshot()
    plugin = InterPodAffinity()
    raw = plugin.score(STATE, request, nodes, np.ones(3, dtype=bool))
    assert raw.tolist() == [10, 5, 0]
    assert plugin.normalize(STATE, request, raw).tolist() == [100, 50, 0]


def test_preferences_of_placed_instances_count_for_new_ones() -> None:
    board = Board(*zones(a=1, b=1, c=1))
    board.put("a0", "cache", {"near": [{"workload": "web", "strength": "prefer", "weight": 7}]})
    board.put("b0", "cache", {"near": [{"workload": "web", "strength": "must", "over": "zone"}]})
    board.put("c0", "cache", {"apart": [{"workload": "web", "strength": "prefer", "weight": 3}]})
    nodes = board.table.snapshot()
    raw = InterPodAffinity().score(STATE, board.request("web"), nodes, np.ones(3, dtype=bool))
    assert raw.tolist() == [7, 1, -3]
