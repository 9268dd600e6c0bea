"""Many alike in one go end up where each of them would have gone alone, and leave the table as it would then be."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from mandor.placement.cycle import decide
from mandor.placement.framework.ask import Ask
from mandor.placement.framework.lodging import Rank, Tenure
from mandor.placement.framework.watch import Unwatched
from mandor.placement.score_row import foreseeable, next_slots
from mandor.placement.table import Table
from tests.property.test_score_rows import Course, key

FORESEEN = ["default", "first wins", "weights", "huge weights", "without fit", "without balance", "all of them"]
SETTLED = Tenure(Rank(3), born=1.0)


def state(table: Table, course: Course) -> list[object]:
    """All that anybody can ask the table for."""
    nodes = table.snapshot()
    numbers = (nodes.free, nodes.counted, nodes.instances, nodes.machines, nodes.turns, nodes.room.shown)
    people = [
        [
            nodes.census.nodes_of(who),
            {name: nodes.quotas.used(who.namespace).get(name) for name in ("cpu", "instances")},
        ]
        for who in course.people
    ]
    keys = [(node.meta.name, sorted(table.keys_on(node.meta.name))) for node in nodes.nodes]
    levels = [(each.priority, each.taken.tolist()) for each in nodes.lodging.levels(100)]
    return [
        *([each.tolist() for each in numbers]),
        people,
        keys,
        levels,
        dict(table.allocations),
        dict(nodes.wanted),
        nodes.lodging.lowest(),
    ]


def alone(course: Course, ask: Ask, count: int) -> tuple[list[str], list[object]]:
    """Where they go one after another, as everybody says who is asked about every node; and what is so then."""
    found: list[str] = []
    with course.table.trial():
        for index in range(count):
            each = structs.replace(ask, key=key(10_000 + index))
            decision = decide(course.long, each, course.table.snapshot())
            if not decision.node or decision.relaxed:  # who has to give something up goes alone
                break
            found.append(decision.node)
            course.table.set_allocation(each.key, decision.node, ask.shape, ask.who, SETTLED)
        return found, state(course.table, course)


def in_one_go(course: Course, ask: Ask, count: int) -> tuple[list[str], list[object]]:
    table = course.table
    slots = next_slots(course.quick, ask, table.snapshot(), count, Unwatched())
    keys = [key(10_000 + index) for index in range(len(slots))]
    if slots:
        table.set_allocations(slots, keys, ask.shape, ask.who, [SETTLED] * len(slots))
    found = [table.nodes[slot].meta.name for slot in slots]
    now = state(table, course)
    for each in keys:
        table.drop_allocation(each)
    return found, now


def follow(course: Course) -> bool:
    """False: these do not go in one go."""
    draw = course.data.draw
    shape, who = course.shapes[draw(st.integers(0, 2))], draw(st.sampled_from(course.people))
    ask = Ask(key(9_999), shape, who=who, avoid=draw(st.sampled_from([frozenset(), frozenset({"n1"})])))
    first = decide(course.quick, ask, course.table.snapshot())
    nodes = course.table.snapshot()
    possible = first.node and not first.relaxed and shape.takes_room_alone(who)
    if not possible or not foreseeable(course.quick, ask, nodes):
        return False
    count = draw(st.integers(1, 40))
    expected = alone(course, ask, count)
    assert in_one_go(course, ask, count) == expected
    return True


def run_course(data: st.DataObject, name: str) -> bool:
    course, followed = Course(data, name), False
    for _ in range(data.draw(st.integers(1, 8))):
        course.step()
        followed |= follow(course)
    return followed


@pytest.mark.req("S3-20")
@pytest.mark.parametrize("name", FORESEEN)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_many_alike_in_one_go_go_where_each_would_have_gone(name: str, data: st.DataObject) -> None:
    run_course(data, name)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_so_it_is_with_the_profile_that_most_have(data: st.DataObject) -> None:
    run_course(data, "default")
