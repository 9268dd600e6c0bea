"""A node that is short of a resource has a taint, and takes only instances that tolerate it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.placement.cycle import decide
from mandor.placement.daemon_nodes import Eligibility, assess_node
from mandor.placement.decision import Decision
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.profiles import default_profile
from mandor.placement.remedy import remedies
from mandor.placement.table import Table
from tests.scenarios.make import make_node, make_template


def pressed(name: str, *signals: str) -> Node:
    node = make_node(name)
    return node.changed(status=replace(node.status, pressure=signals))


def placed(*nodes: Node, priority: int = 0, tolerate: tuple[str, ...] = ()) -> Decision:
    table = Table()
    for node in nodes:
        table.set_node(node)
    return decide(default_profile(), request(priority, tolerate), table.snapshot())


def request(priority: int = 0, tolerate: tuple[str, ...] = ()) -> PlacementRequest:
    template = make_template(placement={"tolerate": [{"key": each} for each in tolerate]})
    return PlacementRequest(Key(Instance.kind, "default", "web-0"), Shape.of(template), priority=priority)


@pytest.mark.req("S3-7")
@pytest.mark.parametrize("priority", [0, 1, 10_000])
def test_a_node_under_pressure_refuses_instances_of_every_priority(priority: int) -> None:
    assert placed(pressed("n1", "disk", "memory"), make_node("n2"), priority=priority).node == "n2"
    refused = placed(pressed("n1", "disk"), priority=priority)
    assert not refused.node
    assert refused.message == "0/1 nodes fit: 1 TaintToleration (1 short of disk: with disk-pressure:NoSchedule)"


@pytest.mark.req("S3-8")
@pytest.mark.parametrize(
    ("signal", "taint"), [("memory", "memory-pressure"), ("disk", "disk-pressure"), ("inodes", "inode-pressure")]
)
def test_a_node_under_pressure_takes_an_instance_that_tolerates_this_pressure(signal: str, taint: str) -> None:
    assert placed(pressed("n1", signal), tolerate=(taint,)).node == "n1"
    for other in ("memory-pressure", "disk-pressure", "inode-pressure", "pressure"):
        assert bool(placed(pressed("n1", signal), tolerate=(other,)).node) == (other == taint)
    both = pressed("n1", signal, "disk" if signal == "memory" else "memory")
    assert not placed(both, tolerate=(taint,)).node, "each pressure has to be tolerated"


def test_an_unknown_pressure_of_a_newer_agent_is_no_taint() -> None:
    assert placed(pressed("n1", "not a label!")).node == "n1"


def test_a_node_takes_instances_again_after_pressure() -> None:
    table = Table()
    table.set_node(pressed("n1", "memory"))
    assert not decide(default_profile(), request(), table.snapshot()).node
    table.set_node(make_node("n1"))
    assert decide(default_profile(), request(), table.snapshot()).node == "n1"


@pytest.mark.req("S3-7")
def test_a_daemon_on_a_node_under_pressure_stays_and_no_new_one_is_placed_there() -> None:
    template = make_template()
    found = assess_node(template, Shape.of(template), pressed("n1", "memory"))
    assert found.fit is Eligibility.RETAINED
    assert found.why == "short of memory: with the taint memory-pressure:NoSchedule"
    tolerant = make_template(placement={"tolerate": [{"key": "memory-pressure"}]})
    assert assess_node(tolerant, Shape.of(tolerant), pressed("n1", "memory")).fit is Eligibility.ELIGIBLE


def test_explain_proposes_to_free_the_resource_and_not_to_tolerate_the_pressure() -> None:
    table = Table()
    table.set_node(pressed("n1", "memory"))
    texts = [each.text for each in remedies(default_profile(), request(), table)]
    assert texts[0] == "free memory on n1, which is short of it"
    assert not [each for each in texts if "tolerate" in each]
    assert "add a node like n1" in texts, "a new node is not under pressure"
