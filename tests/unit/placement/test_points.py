"""The points of a decision: what a plugin is given, what it may answer, and what becomes of a bad one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from msgspec import Struct
from msgspec.structs import replace

from mandor.errors import Invalid
from mandor.placement.built_in import BUILT_IN, DEFAULTS
from mandor.placement.cycle import decide
from mandor.placement.explain import score_table
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.context import Context, run_permits, run_post_binds, run_reserve, run_unreserve
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.handle import DETACHED, Detached, Handle
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.incremental import IncrementalPlugin
from mandor.placement.framework.plugin_factory import Registered, make_plugin
from mandor.placement.framework.points import (
    POINTS,
    SKIP,
    FilterPlugin,
    PermitPlugin,
    Plugin,
    PostFilterPlugin,
    PreFilterPlugin,
    PreScorePlugin,
    ReservePlugin,
    ScorePlugin,
    Skip,
    Wait,
    scaled,
)
from mandor.placement.framework.profile import Enabled, Profile, check_together
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.snapshot import NodeView, Snapshot
from mandor.placement.plugins.priority_sort import PrioritySort
from mandor.placement.profiles import default_profile
from tests.scenarios.make import make_node
from tests.unit.placement.deciding import ASK, make_table, run


@pytest.mark.req("S1-1")
def test_every_built_in_feature_is_a_plugin_and_the_core_decides_nothing_without_them() -> None:
    table = make_table()
    table.set_node(make_node("full", cpu=0))
    table.set_node(make_node("closed", cordoned=True))
    nodes = table.snapshot()
    bare = Profile("bare", [Enabled(PrioritySort())])
    requests = [replace(ASK, identity=Identity("default", f"web{index}", "main")) for index in range(50)]
    chosen = {decide(bare, each, nodes).node for each in requests}
    assert {"full", "closed"} <= chosen, "no plugin, no rule"
    usual = {decide(default_profile(), each, nodes).node for each in requests}
    assert not usual & {"full", "closed"}
    served = {point for point, kind in POINTS.items() for cls in BUILT_IN.values() if issubclass(cls, kind)}
    assert {"preEnqueue", "queueSort", "preFilter", "filter", "preScore", "score", "bind"} <= served


def test_every_default_filter_refuses_by_class() -> None:
    """Else each of a thousand that do not fit is decided anew, for the same answer."""
    kinds = [cls for cls, _ in DEFAULTS if issubclass(cls, FilterPlugin | PreFilterPlugin)]
    assert [cls.name for cls in kinds if not (issubclass(cls, IncrementalPlugin) and cls.by_class)] == []


class Calls(FilterPlugin):
    def __init__(self, name: str, answer: Callable[[str], bool]) -> None:
        self.name = name  # type: ignore[misc]
        self.answer = answer
        self.asked: list[str] = []

    def filter_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> bool:
        self.asked.append(view.name)
        return self.answer(view.name)


@pytest.mark.req("S1-10")
def test_filters_run_in_order_and_a_refused_node_is_not_evaluated_again() -> None:
    first = Calls("First", lambda name: name != "n0")
    second = Calls("Second", lambda name: name != "n1")
    third = Calls("Third", lambda name: True)
    assert run(first, second, third).node == "n2"
    assert (first.asked, second.asked, third.asked) == (["n0", "n1", "n2"], ["n1", "n2"], ["n2"])


class Raising(PreFilterPlugin, FilterPlugin, PreScorePlugin, ScorePlugin, PostFilterPlugin):
    name = "Raising"

    def __init__(self, where: str, after: str = "") -> None:
        self.where = where
        self.called: list[str] = []

    def _at(self, point: str) -> None:
        self.called.append(point)
        if point == self.where:
            raise ValueError(f"in {point}")

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        self._at("pre_filter")
        return None

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        self._at("filter")
        return np.full(len(nodes), self.where != "post_filter")

    def post_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> str | None:
        self._at("post_filter")
        return None

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        self._at("pre_score")
        return None

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        self._at("score")
        return np.zeros(len(nodes), dtype=np.int64)

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        self._at("normalize")
        return scores


@pytest.mark.req("S1-7", "S1-9", "S1-11", "S1-14")
@pytest.mark.parametrize("point", ["pre_filter", "filter", "post_filter", "pre_score", "score", "normalize"])
def test_an_error_at_any_point_aborts_the_cycle_and_names_the_plugin(point: str) -> None:
    plugin = Raising(point)
    decision = run(plugin)
    assert (decision.node, decision.fault) == ("", "Raising")
    assert decision.message == f"the plugin Raising raised ValueError: in {point}"
    assert plugin.called[-1] == point, "nothing comes after it"


class OncePerCycle(PreScorePlugin, ScorePlugin):
    name = "OncePerCycle"

    def __init__(self) -> None:
        self.normalized: list[list[int]] = []

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        state.write(self.name, [7, 5, 3])
        return None

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        return np.array(state.read(self.name, list), dtype=np.int64)

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        self.normalized.append(scores.tolist())
        return scaled(scores)


class Fixed(ScorePlugin):
    """Gives each node a fixed raw score, which is stretched to 0..100 before it is weighted."""

    def __init__(self, name: str, **raw: int) -> None:
        self.name = name  # type: ignore[misc]
        self.raw = raw

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        return np.array([self.raw[node.meta.name] for node in nodes.nodes], dtype=np.int64)

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        return scaled(scores)


@pytest.mark.req("S1-13")
@pytest.mark.parametrize(
    ("first", "second", "node", "totals"),
    [
        # n0: 100 and 0, n1: 50 and 100, n2: 0 and 50, after normalising.
        (1, 1, "n1", {"n0": 100, "n1": 150, "n2": 50}),
        (3, 1, "n0", {"n0": 300, "n1": 250, "n2": 50}),
        (1, 4, "n1", {"n0": 100, "n1": 450, "n2": 200}),
    ],
)
def test_the_node_with_the_highest_weighted_sum_of_normalised_scores_is_chosen(
    first: int, second: int, node: str, totals: dict[str, int]
) -> None:
    # Without normalising, the first plugin would hardly count.
    plugins = [Enabled(Fixed("First", n0=2, n1=1, n2=0), first), Enabled(Fixed("Second", n0=0, n1=100, n2=50), second)]
    profile, nodes = Profile("test", [Enabled(PrioritySort()), *plugins]), make_table().snapshot()
    assert decide(profile, ASK, nodes).node == node
    assert {each.node: each.total for each in score_table(profile, ASK, nodes)} == totals


@pytest.mark.req("S1-11", "S1-12", "S1-14")
def test_normalize_receives_the_feasible_scores_once_a_cycle() -> None:
    plugin = OncePerCycle()
    assert run(Calls("NotFirst", lambda name: name != "n0"), plugin).node == "n1"
    assert plugin.normalized == [[5, 3]]
    run(plugin)
    assert plugin.normalized == [[5, 3], [7, 5, 3]]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [(1.5, "float"), (float("nan"), "float"), ("3", "str"), (None, "NoneType"), (101, "scores are 0..100")],
)
def test_a_score_of_one_node_is_a_whole_number(answer: Any, problem: str) -> None:
    class Odd(ScorePlugin):
        name = "Odd"

        def score_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> int:
            return answer  # type: ignore[no-any-return]

    decision = run(Odd())
    assert decision.fault == "Odd"
    assert problem in decision.message


@pytest.mark.parametrize("answer", [None, 1, "yes", float("nan")])
def test_filter_node_returns_a_boolean(answer: Any) -> None:
    decision = run(Calls("Odd", lambda name: answer))
    assert decision.fault == "Odd"
    assert "not True or False" in decision.message


class Vandal(PreFilterPlugin, PreScorePlugin):
    name = "Vandal"

    def __init__(self, deed: Callable[[Snapshot, Mask | None], object], late: bool = False) -> None:
        self.deed = deed
        self.late = late

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        if not self.late:
            self.deed(nodes, None)
        return None

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        if self.late:
            self.deed(nodes, feasible)
        return None


def _clear_feasible(nodes: Snapshot, feasible: Mask | None) -> None:
    assert feasible is not None
    feasible[:] = False


@pytest.mark.parametrize(
    ("deed", "late"),
    [
        (lambda nodes, _: nodes.free.fill(0), False),
        (lambda nodes, _: nodes.allocatable.__setitem__((0, 0), 5), False),
        (lambda nodes, _: nodes.order().sort(), False),
        (lambda nodes, _: setattr(nodes, "free", None), False),
        (lambda nodes, _: nodes.slots.clear(), False),
        (lambda nodes, _: nodes.rows.pop("cpu"), False),
        (lambda nodes, _: nodes.nodes.clear(), False),
        (_clear_feasible, True),
    ],
)
def test_a_snapshot_cannot_be_changed(deed: Callable[[Snapshot, Mask | None], object], late: bool) -> None:
    table = make_table()
    before = table.snapshot().free.copy()
    assert run(Vandal(deed, late), table=table).fault == "Vandal"
    np.testing.assert_array_equal(table.snapshot().free, before)
    assert run(table=table).node


class OddAnswer(PreFilterPlugin):
    name = "OddAnswer"

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Any:
        return ["n1"]


def test_a_pre_filter_with_an_invalid_result_fails() -> None:
    assert "a PreFilter returns None, SKIP or Only" in run(OddAnswer()).message


class Nominates(PostFilterPlugin):
    name = "Nominates"

    def __init__(self, node: Any) -> None:
        self.node = node

    def post_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Any:
        return self.node


@pytest.mark.req("S1-35")
def test_a_nomination_is_a_node_that_exists() -> None:
    nobody = Calls("Nobody", lambda name: False)
    decision = run(nobody, Nominates("n1"))
    assert (decision.node, decision.nominated) == ("", "n1")
    assert run(nobody, Nominates(None)).nominated == ""
    assert run(nobody, Nominates("n9")).fault == run(nobody, Nominates(7)).fault == "Nominates"
    assert run(Nominates("n1")).nominated == "", "asked only when nothing fits"


def test_the_nominated_node_is_chosen_if_it_fits() -> None:
    assert {run(nominated=name).node for name in ("n0", "n1", "n2")} == {"n0", "n1", "n2"}
    assert run(Calls("NotFirst", lambda name: name == "n2"), nominated="n0").node == "n2"
    assert run(nominated="gone").node


# Made with arguments and the handle.


class Fancy(ScorePlugin):
    name = "Fancy"

    class Args(Struct, frozen=True):
        depth: int = 3

    def __init__(self, args: Args, handle: Handle) -> None:
        self.args, self.handle = args, handle

    def score_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> int:
        return 0


class Plain(Fancy):
    name = "Plain"

    def __init__(self) -> None:
        pass


class Broken(Fancy):
    name = "Broken"

    def __init__(self, more: int) -> None:
        pass


@pytest.mark.req("S1-27")
def test_a_constructor_receives_the_parameters_it_names() -> None:
    fancy = make_plugin(Registered(Fancy), DETACHED, Fancy.Args(5))
    assert isinstance(fancy, Fancy)
    assert (fancy.args.depth, fancy.handle) == (5, DETACHED)
    usual = make_plugin(Registered(Fancy), DETACHED)
    assert isinstance(usual, Fancy)
    assert usual.args.depth == 3
    assert isinstance(make_plugin(Registered(Plain), DETACHED), Plain)
    with pytest.raises(Invalid, match="the plugin Broken cannot be created: TypeError"):
        make_plugin(Registered(Broken), DETACHED)


async def test_a_detached_handle_has_no_snapshot_and_cannot_bind() -> None:
    table = make_table()
    assert Detached(table.snapshot).snapshot() is table.snapshot()
    assert list(DETACHED.waiting()) == []
    assert not DETACHED.approve(ASK.key, "x")
    assert not DETACHED.reject(ASK.key, "x")
    with pytest.raises(RuntimeError):
        DETACHED.snapshot()
    with pytest.raises(RuntimeError):
        await DETACHED.bind(ASK, "n0")


# Reserve, Permit, PostBind.


class Books(ReservePlugin, PermitPlugin):
    def __init__(self, name: str, log: list[str], *, refuses: bool = False, answer: Any = None) -> None:
        self.name = name  # type: ignore[misc]
        self.log, self.refuses, self.answer = log, refuses, answer

    def reserve(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        self.log.append(f"+{self.name}")
        if self.refuses:
            raise RuntimeError("full")

    def unreserve(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        self.log.append(f"-{self.name}")
        if self.refuses:
            raise RuntimeError("lost it")

    def permit(self, state: CycleState, request: PlacementRequest, node: str) -> Any:
        self.log.append(f"?{self.name}")
        return self.answer


def make_context(*plugins: Plugin) -> Context:
    return Context(Profile("test", [Enabled(PrioritySort()), *map(Enabled, plugins)]), ASK, "n0", CycleState())


@pytest.mark.req("S1-36")
def test_unreserve_is_called_for_all_in_reverse_order_even_if_one_raises() -> None:
    log: list[str] = []
    context = make_context(Books("A", log), Books("B", log, refuses=True), Books("C", log))
    with pytest.raises(PluginFault, match="the plugin B raised RuntimeError: full"):
        run_reserve(context)
    assert [fault.plugin for fault in run_unreserve(context)] == ["B"]
    assert log == ["+A", "+B", "-C", "-B", "-A"]
    assert run_post_binds(context) == []


@pytest.mark.req("S1-18", "S1-19", "S1-20")
def test_a_permit_approves_denies_or_waits() -> None:
    log: list[str] = []
    assert run_permits(make_context(Books("A", log))).waits == ()
    waits = run_permits(make_context(Books("A", log, answer=Wait(3)), Books("B", log), Books("C", log, answer=Wait(5))))
    assert (waits.denied_by, waits.waits) == (None, (("A", 3.0), ("C", 5.0)))
    log.clear()
    denied = run_permits(make_context(Books("A", log, answer=Wait(3)), Books("B", log, answer="no"), Books("C", log)))
    assert denied.denied_by is not None
    assert (denied.denied_by.name, denied.why, log) == ("B", "no", ["?A", "?B"])
    for odd in (7, True, Wait(-1), Wait(float("nan")), Wait(float("inf"))):
        with pytest.raises(PluginFault):
            run_permits(make_context(Books("A", log, answer=odd)))


@pytest.mark.req("S1-8", "S1-40")
def test_profiles_that_do_not_work_together_are_refused() -> None:
    class Other(PrioritySort):
        name = "Other"

    usual = default_profile()
    other = Profile("other", [Enabled(Other()), *usual.enabled[2:]])
    check_together({"default": usual})
    for profiles, problem in (
        ({"a": usual}, "no profile named default"),
        ({"default": usual, "other": other}, "share one queue"),
        ({"default": Profile("default", [Enabled(PrioritySort())])}, "no Bind plugin"),
    ):
        with pytest.raises(Invalid, match=problem):
            check_together(profiles)


@pytest.mark.req("S1-15")
def test_values_in_the_state_are_available_at_reserve() -> None:
    class Prepares(ScorePlugin, ReservePlugin):
        name = "Prepares"

        def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
            return np.zeros(len(nodes), dtype=np.int64)

        def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
            state.write(self.name, len(scores))
            return scores

        def reserve(self, state: CycleState, request: PlacementRequest, node: str) -> None:
            assert state.read(self.name, int) == 3

        def unreserve(self, state: CycleState, request: PlacementRequest, node: str) -> None: ...

    plugin = Prepares()
    profile = Profile("test", [Enabled(PrioritySort()), Enabled(plugin)])
    decision = decide(profile, ASK, make_table().snapshot())
    run_reserve(Context(profile, ASK, decision.node, decision.state))


def test_a_plugin_need_not_be_hashable() -> None:
    @dataclass
    class Data(PreFilterPlugin, FilterPlugin):
        name = "Data"
        node: str = "n1"

        def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
            return None

        def filter_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> bool:
            return view.name == self.node

    assert run(Data()).node == "n1"


def test_only_skip_skips() -> None:
    assert list(Skip) == [SKIP]
