"""The framework: order of points, who is blamed, bad plugins, profiles."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from mandor.errors import Invalid
from mandor.lib.steps import at_once
from mandor.model.node import Capabilities
from mandor.placement.cycle import decide
from mandor.placement.framework.column import Mask, MutableColumn, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.dry_run import DryRun
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.incremental import SteppedPostFilter
from mandor.placement.framework.points import (
    SKIP,
    ClusterEvent,
    FilterPlugin,
    Only,
    Plugin,
    PreFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    Skip,
    scaled,
)
from mandor.placement.framework.post_filters import ProfileFilters
from mandor.placement.framework.profile import Enabled, Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import NodeView, Snapshot, node_fact, node_facts
from mandor.placement.framework.watch import Unwatched
from mandor.placement.plugins.default_preemption import DefaultPreemption
from mandor.placement.plugins.node_resources_fit import NodeResourcesFit
from mandor.placement.plugins.priority_sort import PrioritySort
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import make_node
from tests.unit.placement.deciding import ASK, make_table, run


class OddOnly(FilterPlugin):
    """The one-node form."""

    name = "OddOnly"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def filter_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> bool:
        self.asked.append(view.name)
        return int(view.name[1:]) % 2 == 1


class Longest(ScorePlugin):
    name = "Longest"

    def score_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> int:
        return view.free["cpu"]

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        return scaled(scores)


def test_the_one_node_form_is_enough() -> None:
    assert run(OddOnly()).node == "n1"
    assert run(Longest()).node == "n2"


def test_a_plugin_that_defines_neither_form_is_refused_when_it_is_written() -> None:
    with pytest.raises(TypeError, match="filter or filter_node"):

        class Empty(FilterPlugin):
            name = "Empty"

    with pytest.raises(TypeError, match="score or score_node"):

        class AlsoEmpty(ScorePlugin):
            name = "AlsoEmpty"


class Nobody(FilterPlugin):
    name = "Nobody"
    retry_on = frozenset({ClusterEvent.ROOM_FREED})

    def filter_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> bool:
        return False


def test_the_first_plugin_that_refuses_a_node_is_recorded_once() -> None:
    assert run(OddOnly(), Nobody()).message == "0/3 nodes fit: 2 OddOnly, 1 Nobody"
    assert run(Nobody(), OddOnly()).message == "0/3 nodes fit: 3 Nobody"


def test_when_no_node_is_left_other_filters_are_not_called() -> None:
    late = OddOnly()
    run(Nobody(), late)
    assert late.asked == []


def test_a_refusal_lists_the_events_for_a_retry() -> None:
    assert run(Nobody()).retry_on == {ClusterEvent.ROOM_FREED, ClusterEvent.NODE_ADDED}


class Narrow(PreFilterPlugin):
    name = "Narrow"

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Only | Skip | None:
        return Only(self.names)


def test_a_pre_filter_narrows_the_nodes() -> None:
    assert run(Narrow("n0", "n9")).node == "n0"
    assert run(Narrow("n9")).message == "0/3 nodes fit: 3 Narrow"


class SkipsItself(PreFilterPlugin, FilterPlugin, PreScorePlugin, ScorePlugin):
    name = "SkipsItself"

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Only | Skip | None:
        state.write(self.name, 7)
        return SKIP

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        raise AssertionError("skipped")

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        assert state.read(self.name, int) == 7, "the state lives for the whole cycle"
        return SKIP

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        raise AssertionError("skipped")


def test_a_plugin_that_returns_skip_is_skipped() -> None:
    assert run(SkipsItself()).fault == ""


def test_the_state_of_a_cycle_is_typed() -> None:
    state = CycleState()
    state.write("a", 1)
    assert state.read("a", int) == 1
    with pytest.raises(TypeError):
        state.read("a", str)
    with pytest.raises(KeyError):
        state.read("b", int)


class Fixed(ScorePlugin):
    def __init__(self, name: str, answer: object) -> None:
        self.name = name  # type: ignore[misc]
        self.answer = answer

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        return self.answer  # type: ignore[return-value]


def test_scores_are_weighted() -> None:
    one, two = Fixed("One", np.array([100, 0, 0])), Fixed("Two", np.array([0, 60, 0]))
    table = make_table()
    for weight, node in ((1, "n0"), (2, "n1")):
        profile = Profile("test", [Enabled(PrioritySort()), Enabled(one), Enabled(two, weight=weight)])
        assert decide(profile, ASK, table.snapshot()).node == node


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (np.array([1, 2]), "returned int64(2,); expected int64(3,)"),
        (np.array([1.0, float("nan"), 2.0]), "returned float64(3,)"),
        ([1, 2, 3], "returned list"),
        (None, "returned NoneType"),
        (np.array([0, 0, 101]), "scores are 0..100"),
        (np.array([-1, 0, 0]), "scores are 0..100"),
    ],
)
def test_an_invalid_result_fails_the_cycle_and_names_the_plugin(answer: object, problem: str) -> None:
    decision = run(Fixed("Bad", answer))
    assert (decision.node, decision.fault) == ("", "Bad")
    assert problem in decision.message


class Raises(FilterPlugin):
    name = "Raises"

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        raise RuntimeError("oops")


class Scribbles(FilterPlugin):
    name = "Scribbles"

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        nodes.free[0, 0] = 1_000_000
        return np.ones(len(nodes), dtype=np.bool_)


def test_a_plugin_that_raises_fails_the_cycle_and_is_named() -> None:
    assert run(Raises()).message == "the plugin Raises raised RuntimeError: oops"


def test_a_plugin_cannot_change_the_table() -> None:
    table = make_table()
    assert "read-only" in run(Scribbles(), table=table).message
    assert table.free("n0")["cpu"] == 1000
    mask = table.snapshot().pools.where("q", lambda pool: True)
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = False


class Pointless(Plugin):
    name = "Pointless"


class SecondSort(PrioritySort):
    name = "SecondSort"


@pytest.mark.parametrize(
    ("enabled", "problem"),
    [
        ([], "0 QueueSort plugins are enabled"),
        ([Enabled(PrioritySort()), Enabled(SecondSort())], "2 QueueSort plugins are enabled"),
        ([Enabled(PrioritySort()), Enabled(PrioritySort())], "enabled twice"),
        ([Enabled(PrioritySort()), Enabled(NodeResourcesFit(), weight=0)], "a weight is 1 or more"),
        ([Enabled(PrioritySort()), Enabled(NodeResourcesFit(), weight=-1)], "a weight is 1 or more"),
        ([Enabled(PrioritySort()), Enabled(Pointless())], "Pointless serves no point"),
    ],
)
def test_a_wrong_profile_is_refused(enabled: list[Enabled], problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        Profile("odd", enabled)


def test_normalising_never_divides_by_zero() -> None:
    nothing = np.zeros(3, dtype=np.int64)
    assert scaled(nothing).tolist() == [0, 0, 0]
    assert scaled(nothing, reverse=True).tolist() == [100, 100, 100]
    assert scaled(np.array([1, 2, 3])).tolist() == [33, 66, 100]
    assert scaled(np.array([1, 2, 3]), reverse=True).tolist() == [67, 34, 0]
    assert scaled(np.zeros(0, dtype=np.int64)).tolist() == []


def test_ties_are_broken_by_the_seed_and_not_by_the_order_of_nodes() -> None:
    def placed(seed: str, names: list[str]) -> list[str]:
        table = Table(seed)
        for name in names:
            table.set_node(make_node(name))
        requests = [replace(ASK, identity=Identity("default", f"web{index}", "main")) for index in range(20)]
        return [decide(default_profile(), each, table.snapshot()).node for each in requests]

    names = [f"n{index}" for index in range(8)]
    assert placed("a", names) == placed("a", names[::-1])
    assert placed("a", names) != placed("b", names)
    assert len(set(placed("a", names))) > 3, "workloads begin at different nodes"


def test_a_column_runs_a_test_once_for_each_distinct_value() -> None:
    column: MutableColumn[str] = MutableColumn(2)
    for index in range(1000):
        column.append("ab"[index % 2])
    asked: list[str] = []

    def is_a(value: str) -> bool:
        asked.append(value)
        return value == "a"

    mask = column.where("q", is_a)
    assert sorted(asked) == ["a", "b"]
    assert mask.sum() == 500
    assert column.where("q", lambda value: False) is mask, "asked again, it answers from memory"
    column.set(1, "a")
    assert column.where("q", lambda value: value == "a").sum() == 501
    for _ in range(1000):
        column.remove(0)
    assert len(column) == 0
    assert len(column.where("q", lambda value: True)) == 0


def test_values_without_nodes_are_removed() -> None:
    column: MutableColumn[str] = MutableColumn(1)
    column.append("0")
    for index in range(1, 500):
        column.set(0, str(index))
    assert len(column._values) <= 2


def test_node_fact_agrees_with_node_facts() -> None:
    engines = {"docker": Capabilities(images=True, version="24.0"), "process": Capabilities()}
    labels = {"zone": "z1", "node": "mine", "engine.docker.up": "maybe"}
    node = make_node("n1", pool="blue", labels=labels, facts={"os": "linux", "zone": "z2"}, engines=engines)
    facts = node_facts(node)
    assert {name: node_fact(node, name) for name in facts} == facts
    assert node_fact(node, "engine.docker.nothing") is node_fact(node, "nothing") is None


def test_a_subclass_of_the_preemption_may_define_any_form() -> None:
    class Own(DefaultPreemption):
        name = "Own"

        def make_room(self, state: CycleState, dry_run: DryRun) -> str:
            return "n1"

    class Older(DefaultPreemption):
        name = "Older"

        def post_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> str:
            return "n2"

    nodes = make_table(2).snapshot()
    dry_run = DryRun(ASK, nodes, ProfileFilters(default_profile(), ASK, nodes, Unwatched()))
    plugins: list[SteppedPostFilter] = [Own(), Older()]
    assert [at_once(each.making_room(CycleState(), dry_run)) for each in plugins] == ["n1", "n2"]
