"""Capacity scoring: a new volume goes where most of the disk is left with it."""

from __future__ import annotations

import numpy as np
import pytest

from mandor.model.meta import Key
from mandor.placement.cycle import decide
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.plugins.volume_binding import VolumeBinding
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import GI, make_node, make_template


def request(index: int, **fields: object) -> PlacementRequest:
    shape = Shape.of(make_template(**fields))
    return PlacementRequest(
        Key("instance", "default", f"db-{index}"), shape, identity=Identity("default", f"db{index}", "main")
    )


@pytest.mark.req("S1-37")
def test_nodes_are_scored_by_the_disk_that_is_left_with_the_volume() -> None:
    table = Table()
    for name, disk in (("small", 20), ("full", 100), ("wide", 100)):
        table.set_node(make_node(name, disk=disk * GI))
    table.set_allocation(Key("instance", "default", "other-0"), "full", Shape.of(make_template(disk="70Gi")))
    wants = request(0, volumes={"data": {"type": "local", "size": "10Gi"}})
    nodes = table.snapshot()

    scores = VolumeBinding().score(CycleState(), wants, nodes, np.ones(3, dtype=np.bool_))
    assert {node.meta.name: int(scores[slot]) for slot, node in enumerate(nodes.nodes)} == {
        "small": 10 * 99 // 20,
        "full": 20 * 99 // 100,
        "wide": 90 * 99 // 100,
    }
    assert decide(default_profile(), wants, nodes).node == "wide"


@pytest.mark.req("S1-37")
def test_volumes_of_equal_nodes_fill_them_evenly() -> None:
    table = Table()
    for name in ("n1", "n2", "n3"):
        table.set_node(make_node(name, disk=100 * GI))
    profile = default_profile()
    for index in range(9):
        wants = request(index, volumes={"data": {"type": "local", "size": "20Gi"}})
        table.set_allocation(wants.key, decide(profile, wants, table.snapshot()).node, wants.shape, wants.identity)
    assert {name: table.free(name)["disk"] // GI for name in ("n1", "n2", "n3")} == {"n1": 40, "n2": 40, "n3": 40}
