"""A trial leaves no trace unless it is kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.cycle import decide
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import make_node, make_template

GI = 1024**3
NODES = [f"n{index}" for index in range(4)]
SHAPES = [
    Shape.of(make_template(cpu=0.5, memory=GI // 4)),
    Shape.of(make_template(cpu=1, memory=GI, placement={"apart": [{"workload": "self", "over": "zone"}]})),
    Shape.of(make_template(cpu=0.25, placement={"dedicated": True})),
    Shape.of(make_template(placement={"spread": [{"over": "zone"}]})),
]
steps = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([*NODES, "unknown", ""]), st.sampled_from(SHAPES)), max_size=12
)


def _table() -> Table:
    table = Table("trial")
    for index, name in enumerate(NODES):
        table.set_node(make_node(name, cpu=4, memory=4 * GI, labels={"zone": f"z{index % 2}"}))
    return table


def _key(number: int) -> Key:
    return Key(Instance.kind, "default", f"web-{number}")


def _who(number: int) -> Identity:
    return Identity("default", f"web{number % 2}", "main", {"app": str(number % 3)})


def _do(table: Table, todo: list[tuple[int, str, Shape]]) -> None:
    for number, node, shape in todo:
        if node:
            table.set_allocation(_key(number), node, shape, _who(number))
        else:
            table.drop_allocation(_key(number))


def _seen(table: Table) -> object:
    nodes = table.snapshot()
    profile = default_profile()
    return (
        dict(table.allocations),
        nodes.free.tolist(),
        nodes.counted.tolist(),
        nodes.instances.tolist(),
        nodes.turns.tolist(),
        [bool(each) for each in nodes.dedicated_to],
        {name: amount for name, amount in nodes.quotas.used("default").items() if amount},
        dict(nodes.wanted),
        [
            decide(profile, PlacementRequest(_key(99), shape, identity=identity), nodes).node
            for shape in SHAPES
            for identity in (_who(0), _who(1), Identity("default", "new", "main"))
        ],
    )


@settings(max_examples=60, deadline=None)
@given(before=steps, tried=steps, within=steps)
def test_a_trial_that_is_not_kept_leaves_the_table_unchanged(
    before: list[tuple[int, str, Shape]], tried: list[tuple[int, str, Shape]], within: list[tuple[int, str, Shape]]
) -> None:
    table = _table()
    _do(table, before)
    seen, version = _seen(table), table.version
    with table.trial():
        _do(table, tried)
        with table.trial() as inner:
            _do(table, within)
            inner.keep()
    assert _seen(table) == seen
    assert table.version == version


@settings(max_examples=60, deadline=None)
@given(before=steps, tried=steps, within=steps)
def test_a_kept_trial_equals_direct_changes(
    before: list[tuple[int, str, Shape]], tried: list[tuple[int, str, Shape]], within: list[tuple[int, str, Shape]]
) -> None:
    table, plain = _table(), _table()
    _do(table, before)
    with table.trial() as trial:
        with table.trial():
            _do(table, within)
        _do(table, tried)
        trial.keep()
    _do(plain, before)
    _do(plain, tried)
    assert _seen(table) == _seen(plain)


def test_an_error_undoes_a_trial_even_if_it_was_kept() -> None:
    table = _table()

    def fail() -> None:
        with table.trial() as trial:
            table.set_allocation(_key(1), "n1", SHAPES[0])
            trial.keep()
            raise KeyError("somewhere")

    with pytest.raises(KeyError):
        fail()
    assert not table.allocations
