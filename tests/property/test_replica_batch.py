"""A replica batch gives each replica the node of a single decision, and leaves the table in the same state."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from mandor.placement.cycle import decide
from mandor.placement.fast import FAST
from mandor.placement.framework.identity import Selector
from mandor.placement.framework.occupancy import AllocationTerms, Rank
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.watch import Unwatched
from mandor.placement.table import Table
from tests.property.test_fast_decisions import Course, key

FORESEEN = ["default", "first wins", "weights", "huge weights", "without fit", "without balance", "all of them"]
SETTLED = AllocationTerms(Rank(3), born=1.0)


def state(table: Table, course: Course) -> list[object]:
    """Everything that can be read from a table."""
    nodes = table.snapshot()
    numbers = (
        nodes.free,
        nodes.counted,
        nodes.instances,
        nodes.machines,
        nodes.turns,
        nodes._capacity_columns.shown,
    )
    people = [
        [
            nodes.topology.domains(Selector(frozenset({"default"}), identity.workload), "node").by_node.tolist(),
            {name: nodes.quotas.used(identity.namespace).get(name) for name in ("cpu", "instances")},
        ]
        for identity in course.people
    ]
    keys = [(node.meta.name, sorted(table.keys_on(node.meta.name))) for node in nodes.nodes]
    levels = [(each.priority, each.taken.tolist()) for each in nodes.occupancy.levels(100)]
    return [
        *([each.tolist() for each in numbers]),
        people,
        keys,
        levels,
        dict(table.allocations),
        dict(nodes.wanted),
        nodes.occupancy.lowest(),
    ]


def alone(course: Course, request: PlacementRequest, count: int) -> tuple[list[str], list[object]]:
    """Return the nodes of single plain decisions, and the state of the table after them."""
    found: list[str] = []
    with course.table.trial():
        for index in range(count):
            each = structs.replace(request, key=key(10_000 + index))
            decision = decide(course.long, each, course.table.snapshot(), fast=None)
            if not decision.node or decision.relaxed:  # a replica that gives a rule up is not part of a batch
                break
            found.append(decision.node)
            course.table.set_allocation(each.key, decision.node, request.shape, request.identity, SETTLED)
        return found, state(course.table, course)


def in_one_go(course: Course, request: PlacementRequest, count: int) -> tuple[list[str], list[object]]:
    table = course.table
    slots = FAST.replicas(course.quick, request, table.snapshot(), count, Unwatched())
    keys = [key(10_000 + index) for index in range(len(slots))]
    if slots:
        table.set_allocations(slots, keys, request.shape, request.identity, [SETTLED] * len(slots))
    found = [table.nodes[slot].meta.name for slot in slots]
    now = state(table, course)
    for each in keys:
        table.drop_allocation(each)
    return found, now


def follow(course: Course) -> bool:
    """Compare a batch with single decisions; return False if no batch is possible."""
    draw = course.data.draw
    shape, identity = course.shapes[draw(st.integers(0, 2))], draw(st.sampled_from(course.people))
    request = PlacementRequest(
        key(9_999), shape, identity=identity, avoid=draw(st.sampled_from([frozenset(), frozenset({"n1"})]))
    )
    first = decide(course.quick, request, course.table.snapshot())
    nodes = course.table.snapshot()
    possible = first.node and not first.relaxed and shape.takes_room_alone(identity)
    if not possible or not FAST.foresees(course.quick, request, nodes):
        return False
    count = draw(st.integers(1, 40))
    expected = alone(course, request, count)
    assert in_one_go(course, request, count) == expected
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
def test_a_replica_batch_equals_single_decisions(name: str, data: st.DataObject) -> None:
    run_course(data, name)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_replica_batch_of_the_default_profile_equals_single_decisions(data: st.DataObject) -> None:
    run_course(data, "default")
