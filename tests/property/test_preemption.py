"""Preemption on random clusters, against trying everything out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec import structs

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.built_in import DEFAULTS
from mandor.placement.cycle import begin, decide
from mandor.placement.decision import Decision, Moment
from mandor.placement.fast import FAST
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.handle import DETACHED
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.incremental import IncrementalFilter
from mandor.placement.framework.occupancy import AllocationTerms, PlacedInstance, Rank
from mandor.placement.framework.plugin_factory import Registered, make_plugin
from mandor.placement.framework.profile import Enabled, Profile
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.plugins import default_preemption
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import make_node, make_template

SHAPES = {
    (cpu, port): Shape.of(make_template(cpu=str(cpu), ports={"web": {"port": 80, "host": 80}} if port else {}))
    for cpu in range(1, 9)
    for port in (False, True)
}
GROUPS = [Identity("default", f"w{number}", "main") for number in range(3)]
SOON, LATER = 5.0, 500.0
MOMENT = Moment(now=0.0, patience=30.0)


class Agrees(IncrementalFilter):
    """Lets everything through, and says nothing about how far it looks: so everything is really tried out."""

    name = "Agrees"
    by_class = True

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        return np.ones(len(nodes), dtype=np.bool_)


QUICK = default_profile()
LONG = Profile(
    "long",
    [*(Enabled(make_plugin(Registered(cls), DETACHED), weight) for cls, weight in DEFAULTS), Enabled(Agrees())],
)


@dataclass(frozen=True)
class Case:
    rooms: list[int]
    placed_instances: list[tuple[int, int, bool, Rank, int, float | None]]
    """Node, size, port, rank, group, until."""
    budgets: list[int | None]
    cpu: int
    port: bool
    priority: int

    def table(self) -> Table:
        table = Table("seed")
        for number, room in enumerate(self.rooms):
            table.set_node(make_node(f"n{number}", cpu=room))
        left, ports = list(self.rooms), set()
        for number, (where, cpu, port, rank, group, until) in enumerate(self.placed_instances):
            node = where % len(self.rooms)
            port = port and node not in ports
            if left[node] < cpu:
                continue
            left[node] -= cpu
            if port:
                ports.add(node)
            terms = AllocationTerms(rank, born=float(number), until=until)
            key = Key(Instance.kind, "default", f"i{number}")
            table.set_allocation(key, f"n{node}", SHAPES[cpu, port], GROUPS[group], terms)
        for identity, allowed in zip(GROUPS, self.budgets, strict=True):
            table.allocation_state.allow((identity.namespace, identity.workload, identity.group), allowed)
        return table

    @property
    def request(self) -> PlacementRequest:
        identity = Identity("default", "new", "main")
        key = Key(Instance.kind, "default", "new-0")
        return PlacementRequest(key, SHAPES[self.cpu, self.port], self.priority, identity=identity)


ranks = st.builds(Rank, priority=st.integers(0, 4), spared=st.sampled_from([False, False, False, True]))
placed_instances = st.tuples(
    st.integers(0, 3),
    st.integers(1, 3),
    st.booleans(),
    ranks,
    st.integers(0, 2),
    st.sampled_from([None, None, None, SOON, LATER]),
)
cases = st.builds(
    Case,
    rooms=st.lists(st.integers(2, 8), min_size=1, max_size=4),
    placed_instances=st.lists(placed_instances, max_size=14),
    budgets=st.lists(st.sampled_from([None, None, -1, 0, 1, 2]), min_size=3, max_size=3),
    cpu=st.integers(1, 8),
    port=st.booleans(),
    priority=st.integers(0, 5),
)


def fits(case: Case, table: Table, node: str, gone: set[Key]) -> bool:
    left = [each for each in table.allocation_state.placed_instances(node) if each.key not in gone]
    room = next(each for each in table.nodes if each.meta.name == node).allocatable.cpu_milli
    used = sum(dict(each.shape.wanted)["cpu"] for each in left)
    taken = case.port and any(each.shape.host_ports for each in left)
    return used + 1000 * case.cpu <= room and not taken


def going(table: Table, node: str) -> set[Key]:
    return {each.key for each in table.allocation_state.placed_instances(node) if each.terms.until == SOON}


def removable(case: Case, table: Table, node: str) -> list[PlacedInstance]:
    return [
        each
        for each in table.allocation_state.placed_instances(node)
        if each.terms.settled and not each.terms.rank.spared and each.priority < case.priority
    ]


def violations(case: Case, victims: list[PlacedInstance]) -> int:
    broken = 0
    for identity, allowed in zip(GROUPS, case.budgets, strict=True):
        count = sum(each.identity == identity for each in victims)
        broken += max(0, count - max(0, allowed)) if allowed is not None else 0
    return broken


def every_way(case: Case, table: Table) -> list[tuple[int, int]]:
    """(budgets broken, highest priority that goes) of everything that would make room."""
    found: list[tuple[int, int]] = []
    for node in (each.meta.name for each in table.nodes):
        others, anyway = removable(case, table, node), going(table, node)
        ways = (victims for count in range(len(others) + 1) for victims in combinations(others, count))
        found += [
            (violations(case, list(victims)), max((each.priority for each in victims), default=-1))
            for victims in ways
            if fits(case, table, node, anyway | {each.key for each in victims})
        ]
    return found


def stand(table: Table) -> tuple[object, ...]:
    return dict(table.allocations), {each.meta.name: table.free(each.meta.name) for each in table.nodes}, table.version


@settings(max_examples=300, deadline=None)
@given(case=cases)
def test_preemption_evicts_only_necessary_victims(case: Case) -> None:
    table = case.table()
    before = stand(table)
    decision = decide(QUICK, case.request, table.snapshot(), moment=MOMENT)
    assert stand(table) == before, "deciding changes nothing"
    now = [each.meta.name for each in table.nodes if fits(case, table, each.meta.name, set())]
    if now:
        assert decision.node in now
        return
    assert not decision.node
    ways = every_way(case, table)
    lower = any(
        allocation.terms.settled and allocation.terms.rank.priority < case.priority
        for allocation in table.allocations.values()
    )
    if not ways or not lower:
        assert not decision.nominated
        return
    check(case, table, decision, ways)


def check(case: Case, table: Table, decision: Decision, ways: list[tuple[int, int]]) -> None:
    node = decision.nominated
    assert node, "there is a way, and it is not found"
    allowed = {each.key: each for each in removable(case, table, node)}
    assert set(decision.victims) <= allowed.keys(), "only lower priorities on that node, and nobody who is spared"
    victims = [allowed[key] for key in decision.victims]
    keys = {each.key for each in victims}
    gone = going(table, node)
    assert fits(case, table, node, gone | keys)
    for each in keys:
        assert not fits(case, table, node, gone | keys - {each}), f"{each} need not go"
    broken, highest = violations(case, victims), max((each.priority for each in victims), default=-1)
    if min(ways)[0] == 0:
        assert broken == 0, "a budget is broken where none need be"
    if not any(violations(case, list(removable(case, table, each.meta.name))) for each in table.nodes):
        assert highest == min(ways)[1], "a lower one would have done"


@settings(max_examples=150, deadline=None)
@given(case=cases)
def test_counting_gives_what_trying_out_gives(case: Case) -> None:
    quick = decide(QUICK, case.request, case.table().snapshot(), moment=MOMENT)
    long = decide(LONG, case.request, case.table().snapshot(), moment=MOMENT)
    assert (quick.node, quick.nominated, quick.victims) == (long.node, long.nominated, long.victims)


@settings(max_examples=200, deadline=None)
@given(case=cases, after=cases)
def test_in_steps_it_is_what_comes_out_in_one_go(case: Case, after: Case) -> None:
    """`after`: the number of steps after which another instance is decided."""
    table = case.table()
    before = stand(table)
    at_once = decide(QUICK, case.request, table.snapshot(), moment=MOMENT)
    with patch.object(default_preemption, "PLAYED", 1):
        made = begin(QUICK, case.request, table.snapshot(), moment=MOMENT)
        while not isinstance(made, Decision):
            assert stand(table) == before, "between two steps the table is as it was"
            decide(QUICK, after.request, table.snapshot(), moment=MOMENT)
            try:
                next(made)
            except StopIteration as end:
                made = end.value
    assert made == at_once
    assert stand(table) == before


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(case=cases)
def test_when_they_are_gone_it_gets_the_place_that_was_held(case: Case) -> None:
    table = case.table()
    request = case.request
    made = decide(QUICK, request, table.snapshot(), moment=MOMENT)
    assume(made.nominated)
    table.set_allocation(
        request.key, made.nominated, request.shape, request.identity, AllocationTerms(Rank(request.priority), held=True)
    )
    for key in made.victims:
        allocation = table.allocation(key)
        assert allocation is not None
        terms = AllocationTerms(allocation.terms.rank, allocation.terms.born, until=SOON)
        table.set_allocation(key, allocation.node, allocation.shape, allocation.identity, terms)
    waits = decide(QUICK, request, table.snapshot(), nominated=made.nominated, moment=MOMENT)
    assert (waits.node, waits.victims) == ("", ()), "nobody else has to go while they are still there"
    assert waits.nominated == made.nominated
    for key in [*made.victims, *going(table, made.nominated)]:
        table.drop_allocation(key)
    # Somebody of the same priority comes in between.
    other = PlacementRequest(
        Key(Instance.kind, "default", "other-0"),
        request.shape,
        request.priority,
        identity=request.identity,
        preempts=False,
    )
    taken = decide(QUICK, other, table.snapshot(), moment=MOMENT)
    if taken.node:
        table.set_allocation(other.key, taken.node, other.shape, other.identity, AllocationTerms(Rank(other.priority)))
    assert decide(QUICK, request, table.snapshot(), nominated=made.nominated, moment=MOMENT).node == made.nominated


@settings(max_examples=60, deadline=None)
@given(case=cases, more=st.lists(st.tuples(st.booleans(), st.integers(0, 13), placed_instances), max_size=25))
def test_updated_priority_levels_equal_new_ones(
    case: Case, more: list[tuple[bool, int, tuple[int, int, bool, Rank, int, float | None]]]
) -> None:
    table = case.table()
    for drop, number, (where, cpu, port, rank, group, until) in more:
        key = Key(Instance.kind, "default", f"i{number}")
        if drop:
            table.drop_allocation(key)
        else:
            node = f"n{where % len(case.rooms)}"
            table.set_allocation(key, node, SHAPES[cpu, port], GROUPS[group], AllocationTerms(rank, until=until))
        for level in table.allocation_state.levels(below=10):
            expected = np.zeros_like(level.taken)
            for slot, known in enumerate(table.nodes):
                for each in table.allocation_state.placed_instances(known.meta.name):
                    if each.terms.settled and not each.terms.rank.spared and each.priority == level.priority:
                        expected[0, slot] += dict(each.shape.wanted)["cpu"]
                        expected[-1, slot] += 1
            np.testing.assert_array_equal(level.taken, expected)
        going = table.allocation_state.going()
        stopping = [(table.allocations[each.key].node, each) for _, each in table.allocation_state.stopping()]
        for slot, known in enumerate(table.nodes):
            here = [each for node, each in stopping if node == known.meta.name]
            taken = sum(dict(each.shape.wanted)["cpu"] for each in here)
            latest = max((each.terms.until or 0.0 for each in here), default=-np.inf)
            assert (going.taken[0, slot], going.taken[-1, slot], going.latest[slot]) == (taken, len(here), latest)


@settings(max_examples=200, deadline=None)
@given(cases, st.booleans(), st.booleans())
def test_a_decision_with_all_rules_equals_an_ordinary_one_without_relaxation(
    case: Case, first: bool, plain: bool
) -> None:
    placement = {
        "apart": [{"workload": "w0", "strength": "should"}],
        **({"relax": "after-preemption"} if first else {}),
    }
    request = structs.replace(case.request, shape=Shape.of(make_template(cpu=str(case.cpu), placement=placement)))
    table = case.table()
    fast = None if plain else FAST
    usual = decide(QUICK, request, table.snapshot(), fast=fast)
    strict = decide(QUICK, request, table.snapshot(), fast=fast, all_rules=True)
    keeps = not usual.relaxed and (usual.node or first)
    wanted = (usual.node, usual.nominated, usual.victims) if keeps else ("", "", ())
    assert (strict.node, strict.nominated, strict.victims) == wanted
    assert not strict.relaxed
