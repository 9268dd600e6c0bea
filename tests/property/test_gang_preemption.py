"""Preemption for gangs on random clusters, compared with a search over all possible victims."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.occupancy import AllocationTerms, PlacedInstance, Rank
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.gang import GangDecision, GangTrial
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.property.test_preemption import MOMENT, SOON, Case, going, removable, stand, violations
from tests.scenarios.make import make_template

PROFILE = default_profile()
WHO = Identity("default", "mpi", "main")
APART = {"apart": [{"workload": "self", "over": "node"}]}
SHAPES = {
    (cpu, apart): Shape.of(make_template(cpu=str(cpu), placement=APART if apart else {}))
    for cpu in range(1, 5)
    for apart in (False, True)
}


@dataclass(frozen=True)
class Gang:
    cluster: Case
    count: int
    apart: bool

    @property
    def requests(self) -> list[PlacementRequest]:
        shape = SHAPES[self.cluster.cpu, self.apart]
        keys = [Key(Instance.kind, "default", f"mpi-{index}") for index in range(self.count)]
        return [PlacementRequest(key, shape, self.cluster.priority, identity=WHO) for key in keys]

    def decide(self, table: Table, most: int = 1000) -> GangDecision:
        trial = GangTrial(PROFILE, self.requests, table, least=self.count, moment=MOMENT)
        for _ in range(10_000):
            found = trial.step(most)
            if found is not None:
                return found
        raise AssertionError("no end")

    def room(self, table: Table, gone: set[Key]) -> int:
        """Return how many members fit without these instances."""
        count = 0
        for node in table.nodes:
            left = [each for each in table.allocation_state.placed_instances(node.meta.name) if each.key not in gone]
            used = sum(dict(each.shape.wanted)["cpu"] for each in left)
            here = max(0, node.allocatable.cpu_milli - used) // (1000 * self.cluster.cpu)
            count += min(here, 1) if self.apart else here
        return count

    def fits(self, table: Table, gone: set[Key]) -> bool:
        return self.room(table, gone) >= self.count


def _gang(dice: random.Random) -> Gang:
    """Nodes that are full, nearly: chosen by dice, since what is small and simple seldom needs many to go."""
    rooms = [dice.randint(2, 4) for _ in range(dice.randint(2, 4))]
    placed_instances: list[tuple[int, int, bool, Rank, int, float | None]] = []
    for node, room in enumerate(rooms):
        left = room - dice.choice([0, 0, 0, 1])
        while left > 0 and len(placed_instances) < 9:
            cpu = dice.randint(1, min(left, 3))
            left -= cpu
            rank = Rank(dice.randint(0, 2), spared=dice.random() < 0.1)
            placed_instances.append((node, cpu, False, rank, dice.randint(0, 2), dice.choice([None] * 5 + [SOON])))
    budgets: list[int | None] = [None] * 3
    if dice.random() < 0.6:
        budgets = [dice.choice([None, 0, 1, 2]) for _ in range(3)]
    cpu, priority = dice.choice([1, 2, 2, 3]), dice.choice([1, 2, 3, 3])
    cluster = Case(rooms, placed_instances, budgets, cpu, port=False, priority=priority)
    return Gang(cluster, dice.randint(2, 3), apart=dice.random() < 0.4)


gangs = st.integers(0, 1_000_000).map(lambda seed: _gang(random.Random(seed)))


def everywhere(gang: Gang, table: Table) -> tuple[list[PlacedInstance], set[Key]]:
    """Return the possible victims, and the instances that stop anyway."""
    names = [each.meta.name for each in table.nodes]
    may_go = [each for name in names for each in removable(gang.cluster, table, name)]
    return may_go, {key for name in names for key in going(table, name)}


def every_way(gang: Gang, table: Table) -> list[tuple[int, int]]:
    """(budgets broken, highest priority that goes) of everything that would make room for all."""
    others, anyway = everywhere(gang, table)
    return [
        (violations(gang.cluster, list(victims)), max((each.priority for each in victims), default=-1))
        for count in range(len(others) + 1)
        for victims in combinations(others, count)
        if gang.fits(table, anyway | {each.key for each in victims})
    ]


@pytest.mark.req("S1-35", "S3-27")
@settings(max_examples=400, deadline=None)
@given(gang=gangs)
def test_a_gang_evicts_only_necessary_victims(gang: Gang) -> None:
    table = gang.cluster.table()
    before = stand(table)
    found = gang.decide(table)
    assert stand(table) == before, "deciding changes nothing"
    assert bool(found.placed) == gang.fits(table, set())
    if found.placed:
        assert not found.nominated, "a gang that fits evicts nothing"
        return
    ways = every_way(gang, table)
    lower = any(
        allocation.terms.settled and allocation.terms.rank.priority < gang.cluster.priority
        for allocation in table.allocations.values()
    )
    if not ways or not lower:
        assert not found.nominated, "nobody has to go for a part of it"
        return
    check(gang, table, found, ways)


def check(gang: Gang, table: Table, found: GangDecision, ways: list[tuple[int, int]]) -> None:
    assert len(found.nominated) == gang.count, "there is a way, and it is not found"
    may_go, anyway = everywhere(gang, table)
    allowed = {each.key: each for each in may_go}
    named = [key for each in found.nominated for key in each.victims]
    assert len(named) == len(set(named))
    assert set(named) <= allowed.keys(), "only lower priorities, and nobody who is spared"
    victims, nodes = [allowed[key] for key in named], {each.nominated for each in found.nominated}
    keys = set(named)
    assert gang.fits(table, anyway | keys)
    for each in keys:
        assert not gang.fits(table, anyway | keys - {each}), f"{each} need not go"
    assert {allocation.node for key, allocation in table.allocations.items() if key in keys} <= nodes
    broken, highest = violations(gang.cluster, victims), max((each.priority for each in victims), default=-1)
    if min(ways)[0] == 0:
        assert broken == 0, "a budget is broken where none need be"
    if all(each is None for each in gang.cluster.budgets):
        assert highest == min(ways)[1], "a lower one would have done"


def test_no_budget_is_broken_when_another_choice_of_nodes_keeps_all() -> None:
    """Beginning with the first node looks as good as with any other, and leads to a broken budget."""
    rank = Rank(0)
    places = [(0, 0), (0, 1), (1, 0), (1, 0), (2, 1), (2, 1)]
    cluster = Case(
        [2, 2, 2],
        [(node, 1, False, rank, group, None) for node, group in places],
        [2, 2, None],
        cpu=2,
        port=False,
        priority=1,
    )
    gang, table = Gang(cluster, 2, apart=False), cluster.table()
    found = gang.decide(table)
    check(gang, table, found, every_way(gang, table))
    assert {each.nominated for each in found.nominated} == {"n1", "n2"}


@settings(max_examples=100, deadline=None)
@given(gang=gangs, most=st.integers(1, 4))
def test_room_is_made_in_steps_as_in_one_go(gang: Gang, most: int) -> None:
    table = gang.cluster.table()
    assert gang.decide(table, most) == gang.decide(table)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(gang=gangs)
def test_when_they_are_gone_all_members_get_the_places_that_were_held(gang: Gang) -> None:
    table = gang.cluster.table()
    made = gang.decide(table)
    assume(made.nominated)
    for each, request in zip(made.nominated, gang.requests, strict=True):
        table.set_allocation(
            request.key,
            each.nominated,
            request.shape,
            request.identity,
            AllocationTerms(Rank(request.priority), held=True),
        )
    victims = [key for each in made.nominated for key in each.victims]
    for key in victims:
        allocation = table.allocation(key)
        assert allocation is not None
        terms = AllocationTerms(allocation.terms.rank, allocation.terms.born, until=SOON)
        table.set_allocation(key, allocation.node, allocation.shape, allocation.identity, terms)
    waits = gang.decide(table)
    assert not waits.placed
    assert [(each.nominated, each.victims) for each in waits.nominated] == [
        (each.nominated, ()) for each in made.nominated
    ], "nobody else has to go while they are still there"
    for key in [*victims, *(key for node in table.nodes for key in going(table, node.meta.name))]:
        table.drop_allocation(key)
    placed = {each.key: each.node for each in gang.decide(table).placed}
    assert placed == {each.key: each.nominated for each in made.nominated}
