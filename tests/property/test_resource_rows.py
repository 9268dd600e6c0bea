"""A table whose device kinds share rows equals one where each kind has a row of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.cycle import decide
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.occupancy import AllocationTerms, Rank
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import make_node, make_template

KINDS = ["a", "b", "c", "d", "e"]
PLAIN = Shape.of(make_template(cpu="100m"))
SHAPES = [
    PLAIN,
    *(replace(PLAIN, wanted=(*PLAIN.wanted, (kind, amount))) for kind in KINDS for amount in (1, 2)),
    *(replace(PLAIN, wanted=(*PLAIN.wanted, (kind, 1), ("e", 1))) for kind in "ab"),
]
WHO = Identity("default", "web", "main")
PROFILE = default_profile()

numbers = st.integers(0, 6)
devices = st.dictionaries(st.sampled_from(KINDS), st.integers(1, 3), max_size=2)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("node"), numbers, devices),
        st.tuples(st.just("remove"), numbers, st.none()),
        st.tuples(st.just("place"), st.integers(0, 30), st.sampled_from(SHAPES)),
        st.tuples(st.just("force"), numbers, st.sampled_from(SHAPES)),
        st.tuples(st.just("drop"), st.integers(0, 30), st.none()),
        st.tuples(st.just("evict"), st.integers(0, 9), st.sampled_from(SHAPES)),
    ),
    max_size=40,
)


def key(number: int) -> Key:
    return Key(Instance.kind, "default", f"i{number}")


def state(table: Table) -> dict[str, Any]:
    """Everything that readers see of the resources, by name."""
    nodes = table.snapshot()
    by_name: dict[str, Any] = {}
    for name, row in nodes.rows.items():
        free, has = nodes.free[row], nodes.allocatable[row]
        assert free.tolist() == [int(nodes.free[row, slot]) for slot in range(len(nodes))]
        at = np.arange(len(nodes))[::2]
        assert nodes.free[row, at].tolist() == free[::2].tolist()
        by_name[name] = free.tolist(), has.tolist()
    stored = {
        (level.priority, name, node.meta.name): int(level.taken[nodes.stored_row(name), slot])
        for level in nodes.occupancy.levels(100)
        for slot, node in enumerate(nodes.nodes)
        for name, _ in nodes.own_resources(slot)
    }
    views = [{name: each.free[name] for name in ("cpu", *KINDS)} for each in nodes.views()]
    return {"free": by_name, "levels": {each: count for each, count in stored.items() if count}, "views": views}


class Pair:
    """The same changes on both tables."""

    def __init__(self, own: int) -> None:
        self.tables = [Table("rows", own_rows=100), Table("rows", own_rows=own)]
        self.count = 0

    def request(self, shape: Shape, priority: int = 0) -> PlacementRequest:
        self.count += 1
        return PlacementRequest(key(self.count), shape, priority, identity=WHO)

    def decide(self, request: PlacementRequest) -> tuple[str, str, tuple[Key, ...], str]:
        plain, shared = (decide(PROFILE, request, table.snapshot()) for table in self.tables)
        found = shared.node, shared.nominated, shared.victims, shared.message
        assert found == (plain.node, plain.nominated, plain.victims, plain.message)
        return found

    def act(self, kind: str, number: int, given: Any) -> None:
        if kind == "node":
            for table in self.tables:
                table.set_node(make_node(f"n{number}", cpu=1, devices=given))
        elif kind == "remove":
            for table in self.tables:
                table.remove_node(f"n{number}")
        elif kind == "drop":
            for table in self.tables:
                table.drop_allocation(key(number))
        elif kind == "force":
            # An instance may be on a node that has lost its devices.
            self.allocate(self.request(given), f"n{number}")
        else:
            request = self.request(given, priority=5 if kind == "evict" else 0)
            node, nominated, victims, _ = self.decide(request)
            for table in self.tables:
                for victim in victims:
                    table.drop_allocation(victim)
            if node or nominated:
                self.allocate(request, node or nominated)

    def allocate(self, request: PlacementRequest, node: str) -> None:
        for table in self.tables:
            table.set_allocation(
                request.key, node, request.shape, WHO, AllocationTerms(Rank(request.priority), born=float(self.count))
            )


@settings(max_examples=150, deadline=None)
@given(own=st.integers(0, 2), history=steps)
def test_device_kinds_that_share_rows_give_the_same_amounts_and_decisions(
    own: int, history: list[tuple[str, int, Any]]
) -> None:
    pair = Pair(own)
    for step in history:
        pair.act(*step)
        plain, shared = (state(table) for table in pair.tables)
        assert shared == plain
    for shape in SHAPES:
        pair.decide(pair.request(shape, priority=9))


def test_a_kind_of_its_own_on_each_of_a_thousand_nodes_adds_one_row() -> None:
    table = Table("rows")
    for number in range(1000):
        table.set_node(make_node(f"n{number}", devices={f"kind-{number}": 1}))
    nodes = table.snapshot()
    assert len(nodes.rows) == 1003
    assert nodes.occupancy.going().taken.shape[0] < 20
    for number in (0, 9, 500, 999):
        free = nodes.free[nodes.rows[f"kind-{number}"]]
        assert free.sum() == 1
        assert free[nodes.slots[f"n{number}"]] == 1
