"""The quick way to a node: taken where it can be, and never to another node than the long way."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Capabilities
from mandor.placement.cycle import decide
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.watch import Unwatched
from mandor.placement.plugin_reach import plan
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import make_node, make_template

QUICK = default_profile()
LONG = default_profile()
LONG.local = False
WHO = Identity("default", "web", "main")


def make_table(count: int) -> Table:
    table = Table()
    for index in range(count):
        table.set_node(make_node(f"n{index}", cpu=1 + index % 3 / 10, labels={"zone": "ab"[index % 2]}))
    return table


def request(index: int, shape: Shape) -> PlacementRequest:
    return PlacementRequest(Key(Instance.kind, "default", f"web-{index}"), shape, identity=WHO)


def wide_plugins(shape: Shape, table: Table) -> list[str]:
    """A plugin that is called for all nodes each time."""
    wide = plan(QUICK, CycleState(), request(0, shape), table.snapshot(), Unwatched()).wide
    return [] if wide is None else [each.name for each in (*wide.filters, *(plugin for plugin, _ in wide.scores))]


@pytest.mark.parametrize("block", [1, 5, 20, 45])
def test_alternating_classes_see_each_others_allocations(block: int) -> None:
    """So that few, many and too many nodes have changed between two decisions of a class."""
    table = make_table(60)
    shapes = [Shape.of(make_template(cpu="600m")), Shape.of(make_template(cpu="300m", memory="1Gi"))]
    for shape in shapes:
        decide(QUICK, request(999, shape), table.snapshot())
    for index in range(130):
        asked = request(index, shapes[index // block % 2])
        found, expected = decide(QUICK, asked, table.snapshot()), decide(LONG, asked, table.snapshot())
        assert (found.node, found.message) == (expected.node, expected.message)
        if found.node:
            table.set_allocation(asked.key, found.node, asked.shape, WHO)
    assert all(room >= 0 for node in table.snapshot().nodes for room in table.free(node.meta.name).values())


@pytest.mark.parametrize(
    ("placement", "wide"),
    [
        ({}, []),
        ({"where": [{"rule": "zone == a"}]}, []),
        ({"where": [{"rule": "zone == a", "strength": "prefer"}]}, ["NodeAffinity"]),
        ({"spread": [{"over": "zone"}]}, ["PodTopologySpread"]),
        ({"apart": [{"workload": "self"}]}, ["InterPodAffinity"]),
        ({"dedicated": True}, ["PoolFit"]),
    ],
)
def test_only_cluster_wide_plugins_are_called_for_all_nodes(placement: dict[str, Any], wide: list[str]) -> None:
    assert wide_plugins(Shape.of(make_template(placement=placement)), make_table(4)) == wide


@pytest.mark.parametrize("changes", [0, 3, 30, 300])
def test_a_node_that_has_everything_but_room_is_not_taken(changes: int) -> None:
    """High attribute scores do not make a full node fit."""
    table, images = make_table(3), {"web:1": 900 * 1024**2}
    full = make_node("full", cpu=1, engines={"docker": Capabilities(images=True)})
    table.set_node(full.changed(status=structs.replace(full.status, images=images)))
    shape = Shape.of(make_template(cpu="600m", image="web:1"))
    assert decide(QUICK, request(0, shape), table.snapshot()).node == "full"
    table.set_allocation(request(0, shape).key, "full", shape, WHO)
    for index in range(changes):  # so that the row is brought up to date in each of the ways there are
        table.set_allocation(request(1000 + index, shape).key, "full", shape, WHO)
        table.drop_allocation(request(1000 + index, shape).key)
    for profile in (QUICK, LONG):
        assert not decide(profile, request(1, shape), table.snapshot()).node


def test_a_placed_instance_with_a_rule_about_a_class_counts_immediately() -> None:
    table, shape = make_table(4), Shape.of(make_template())
    assert decide(QUICK, request(0, shape), table.snapshot()).node
    assert not wide_plugins(shape, table)
    quiet = Shape.of(make_template(placement={"apart": [{"workload": "web"}]}))
    table.set_allocation(Key(Instance.kind, "default", "quiet-0"), "n0", quiet, Identity("default", "quiet", "main"))
    assert wide_plugins(shape, table) == ["InterPodAffinity"]
    placed = set()
    for index in range(20):
        found = decide(QUICK, request(index, shape), table.snapshot()).node
        table.set_allocation(request(index, shape).key, found, shape, WHO)
        placed.add(found)
    assert placed == {"n1", "n2", "n3"}
