"""A node that is short of something takes only what matters."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.placement.cycle import decide
from mandor.placement.decision import Decision
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import make_node, make_template


def pressed(name: str, *signals: str) -> Node:
    node = make_node(name)
    return node.changed(status=replace(node.status, pressure=signals))


def placed(*nodes: Node, priority: int = 0) -> Decision:
    table = Table()
    for node in nodes:
        table.set_node(node)
    request = PlacementRequest(Key(Instance.kind, "default", "web-0"), Shape.of(make_template()), priority=priority)
    return decide(default_profile(), request, table.snapshot())


@pytest.mark.req("S3-7")
def test_a_node_under_pressure_refuses_low_priorities() -> None:
    assert placed(pressed("n1", "disk", "memory"), make_node("n2")).node == "n2"
    refused = placed(pressed("n1", "disk", "memory"))
    assert not refused.node
    assert refused.message == "0/1 nodes fit: 1 NodeUnschedulable (1 short of disk, memory)"


@pytest.mark.req("S3-8")
def test_a_node_under_pressure_takes_high_priorities() -> None:
    assert placed(pressed("n1", "memory"), priority=1).node == "n1"


def test_a_node_takes_all_priorities_after_pressure() -> None:
    table = Table()
    table.set_node(pressed("n1", "memory"))
    request = PlacementRequest(Key(Instance.kind, "default", "web-0"), Shape.of(make_template()))
    assert not decide(default_profile(), request, table.snapshot()).node
    table.set_node(make_node("n1"))
    assert decide(default_profile(), request, table.snapshot()).node == "n1"
