"""Priority levels and budgets that are updated by changes equal the sums over all allocations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.occupancy import AllocationTerms, Rank
from mandor.placement.framework.request import Shape
from mandor.placement.priority_levels import LEVELS_MOST
from mandor.placement.table import Table
from tests.scenarios.make import make_node, make_template

NAMES = [f"n{number}" for number in range(20)]
"""More than the columns have room for at first."""
PLAIN = [Shape.of(make_template(cpu=cpu, memory=memory)) for cpu, memory in ((1, 2**20), (2, 2**10))]
SHAPES = [*PLAIN, replace(PLAIN[0], wanted=(*PLAIN[0].wanted, ("gpu", 2)))]
WHO = Identity("default", "web", "main")
GROUP = ("default", "web", "main")
RANKS = [Rank(0), Rank(7), Rank(7, spared=True), Rank(-3)]

all_terms = st.builds(
    AllocationTerms,
    rank=st.sampled_from(RANKS),
    until=st.sampled_from([None, None, None, 5.0, 5.0, 9.0]),
    held=st.sampled_from([False, False, False, True]),
)


def key(number: int) -> Key:
    return Key(Instance.kind, "default", f"i{number}")


def check(table: Table) -> None:
    rows, count = table.snapshot().rows, len(table)
    levels = {level.priority: level.taken for level in table.allocation_state.levels(below=2**31)}
    expected = {each: np.zeros((len(rows) + 1, count), dtype=np.int64) for each in levels}
    going, latest = np.zeros((len(rows) + 1, count), dtype=np.int64), np.full(count, -np.inf)
    for slot, node in enumerate(table.nodes):
        for placed_instance in table.allocation_state.placed_instances(node.meta.name):
            terms = placed_instance.terms
            if terms.held or (terms.rank.spared and terms.until is None):
                continue
            if terms.until is not None:
                taken, latest[slot] = going, max(latest[slot], terms.until)
            else:
                taken = expected[max(each for each in levels if each <= terms.rank.priority)]
            for resource, amount in placed_instance.shape.wanted:
                taken[rows[resource], slot] += amount
            taken[-1, slot] += 1
    for priority, taken in levels.items():
        np.testing.assert_array_equal(taken, expected[priority])
    check_alike(table)
    check_stopping(table)
    np.testing.assert_array_equal(table.allocation_state.going().taken, going)
    np.testing.assert_array_equal(table.allocation_state.going().latest, latest)


def check_alike(table: Table) -> None:
    expected: dict[tuple[Shape, int, str], int] = {}
    for node in table.nodes:
        for each in table.allocation_state.placed_instances(node.meta.name):
            if each.terms.settled and not each.terms.rank.spared:
                kind = (each.shape, each.priority, node.meta.name)
                expected[kind] = expected.get(kind, 0) + 1
    assert table.allocation_state.tight() == []
    with table.trial():
        table.allocation_state.allow(GROUP, 0)
        found = {
            (shape, rank, node): count
            for shape, rank, by in table.allocation_state.tight()
            for node, count in by.items()
        }
        table.allocation_state.allow(GROUP, None)
    assert found == expected


def check_stopping(table: Table) -> None:
    going = [(allocation.terms.until, allocation.node, key) for key, allocation in table.allocations.items()]
    plain = sorted(
        (until, node, key) for until, node, key in going if until is not None and not table.allocations[key].terms.held
    )
    soon = [(node, key) for until, node, key in plain if until <= 5.0]
    assert [(node, each.key) for node, each in table.allocation_state.stopping()] == [
        (node, key) for _, node, key in plain
    ]
    assert [(node, each.key) for node, each in table.allocation_state.stopping(by=5.0)] == soon
    assert [(node, each.key) for node, each in table.allocation_state.stopping(by=5.0, most=2)] == soon[:2]
    some = set(NAMES[:10])
    found = table.allocation_state.stopping(by=5.0, among=some)
    assert [(node, each.key) for node, each in found] == [each for each in soon if each[0] in some]


class Course:
    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        self.table = Table("seed")
        self.streaks = 0

    def step(self, what: str) -> None:
        draw, table = self.draw, self.table
        name = draw(st.sampled_from(NAMES))
        if what == "node":
            table.set_node(make_node(name, devices=draw(st.sampled_from([{}, {"fpga": 1}]))))
        elif what == "gone":
            table.remove_node(name)
        elif what == "end":
            table.drop_allocation(key(draw(st.integers(0, 9))))
        elif what == "come":
            shape = draw(st.sampled_from(SHAPES))
            table.set_allocation(key(draw(st.integers(0, 9))), name, shape, WHO, draw(all_terms))
        elif what == "streak" and len(table):
            slots = draw(st.lists(st.integers(0, len(table) - 1), min_size=1, max_size=5))
            self.streaks += 1
            keys = [key(100 * self.streaks + number) for number in range(len(slots))]
            rank = draw(st.sampled_from(RANKS))
            table.set_allocations(slots, keys, draw(st.sampled_from(PLAIN)), WHO, [AllocationTerms(rank)] * len(slots))
        elif what == "trial":
            with table.trial():
                for _ in range(3):
                    self.step(draw(st.sampled_from(["come", "end"])))
                check(table)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_priority_levels_equal_the_sum_of_allocations(data: st.DataObject) -> None:
    course = Course(data)
    course.step("node")
    whats = st.sampled_from(["node", "node", "gone", "come", "come", "come", "end", "streak", "trial"])
    for what in data.draw(st.lists(whats, min_size=1, max_size=40)):
        course.step(what)
        check(course.table)


@settings(max_examples=20, deadline=None)
@given(numbers=st.permutations(range(LEVELS_MOST + 20)), apart=st.sampled_from([1, 1000, 25_000, 40_000_000]))
def test_priority_levels_stay_correct_with_more_priorities_than_columns(numbers: list[int], apart: int) -> None:
    table = Table("seed")
    for name in NAMES[:2]:
        table.set_node(make_node(name, cpu=1000))
    for number in numbers:
        priority = (number - LEVELS_MOST // 2) * apart
        table.set_allocation(key(number), NAMES[number % 2], PLAIN[0], WHO, AllocationTerms(Rank(priority)))
        check(table)
    assert len(table.allocation_state.levels(below=10_000_000)) < len(numbers)
    for number in numbers:
        table.drop_allocation(key(number))
        check(table)
    for number in range(LEVELS_MOST + 20):  # those of before are given up where nobody is: these can be told apart
        table.set_allocation(key(0), NAMES[0], PLAIN[0], WHO, AllocationTerms(Rank(-900_000 + number)))
        check(table)
