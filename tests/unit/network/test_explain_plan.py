"""Explanations name the first thing that keeps traffic from its target."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mandor.model.instance import Instance, PortStatus
from mandor.model.meta import Meta
from mandor.model.node import Node, NodePhase, NodeStatus
from mandor.model.phase import Phase
from mandor.model.service import Service, ServicePort, ServiceStatus
from mandor.network.explain_plan import (
    RelatedObjects,
    TrafficExplanation,
    endpoint_states,
    explain_instance,
    explain_service,
)
from mandor.network.traffic_report import PortTraffic, ReportedEndpoint, TrafficReport
from tests.unit.network.test_endpoints import instance, service

CLIENT = instance("app-0")


def node(name: str, phase: NodePhase = NodePhase.READY) -> Node:
    return Node(meta=Meta(name=name), status=NodeStatus(phase=phase, address=f"192.0.2.{name[1:]}"))


NODES = {each: node(each) for each in ("n1", "n2")}
WORKING = TrafficReport(
    "n1",
    "",
    (PortTraffic("http", 80, "tcp", ("10.93.0.64",), (ReportedEndpoint("172.17.0.3", 8080, "web-1", "n1"),), 7),),
)


def explain(
    *instances: Instance,
    port: str = "",
    report: TrafficReport | None = WORKING,
    nodes: dict[str, Node] = NODES,
    client: Instance = CLIENT,
    wanted: Service | None = None,
    **changes: Any,
) -> TrafficExplanation:
    return explain_service(client, wanted or service(**changes), port, RelatedObjects(instances, nodes, report))


def failing(found: TrafficExplanation) -> dict[str, str]:
    return {each.name: each.message for each in found.steps if not each.good}


def test_a_working_way_has_only_good_steps() -> None:
    found = explain(instance("web-1"))
    assert (found.reaches, failing(found)) == (True, {})
    assert [each.name for each in found.steps] == ["client", "client's node", "name", "port", "endpoints", "data path"]
    assert found.steps[-1].message == "n1 balances 10.93.0.64:80 over 1 endpoints (7 connections, 0 failures)"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ready": False}, "web-1 is not ready: its readiness probe fails or has not passed yet"),
        ({"stop": True}, "web-1 is stopping: scaled down"),
        ({"phase": Phase.STARTING}, "web-1 is Starting"),
        ({"ports": (PortStatus(name="admin", port=9000),)}, "web-1 has no tcp port http that n1 reaches"),
    ],
)
def test_an_instance_without_traffic_has_its_reason(change: dict[str, Any], reason: str) -> None:
    found = explain(instance("web-1", **change))
    assert not found.reaches
    assert failing(found)["endpoint"] == reason
    assert failing(found)["endpoints"] == "0 of 1 instances of web get traffic"


def test_one_bad_instance_among_good_ones_does_not_break_the_way() -> None:
    found = explain(instance("web-1"), instance("web-2", ready=False))
    assert found.reaches
    assert list(failing(found)) == ["endpoint"]


def test_an_instance_on_another_node_needs_a_published_port() -> None:
    found = explain(instance("web-1", "n2", ports=(PortStatus(name="http", port=8080),)))
    assert failing(found)["endpoint"] == "web-1 on n2 publishes no port, so other nodes do not reach it"


def test_a_node_that_is_down_is_named() -> None:
    found = explain(instance("web-1", "n2"), nodes={"n1": NODES["n1"], "n2": node("n2", NodePhase.DOWN)})
    assert not found.reaches
    assert failing(found)["endpoint's node"] == "n2 is Down"
    assert "client's node" in failing(explain(instance("web-1"), nodes={}))


def test_a_port_that_the_service_does_not_have_is_named_with_those_that_it_has() -> None:
    assert failing(explain(instance("web-1"), port="81"))["port"] == "it has no port 81; its ports: http (80/tcp)"
    several = {"http": ServicePort(port=80), "admin": ServicePort(port=81)}
    found = explain_service(CLIENT, service(port=several), "", RelatedObjects([], NODES, WORKING))
    assert failing(found)["port"] == "name one of its ports: http (80/tcp), admin (81/tcp)"


def test_a_service_without_a_virtual_address_says_why() -> None:
    shop = service()
    full = msgspec.structs.replace(shop, status=ServiceStatus(message="all addresses are in use"))
    found = explain(instance("web-1"), wanted=full)
    assert failing(found)["name"] == "shop.default has no virtual address: all addresses are in use"


@pytest.mark.parametrize(
    ("report", "message"),
    [
        (None, "the agent of n1 did not answer"),
        (TrafficReport("n1", "the node has no data path for services"), "n1: the node has no data path for services"),
        (TrafficReport("n1"), "n1 does not balance the port http"),
    ],
)
def test_a_data_path_that_does_not_serve_is_the_reason(report: TrafficReport | None, message: str) -> None:
    found = explain(instance("web-1"), report=report)
    assert (found.reaches, failing(found)) == (False, {"data path": message})


def test_an_external_address_without_traffic_has_the_reason_of_its_check() -> None:
    report = msgspec.structs.replace(WORKING, excluded={"10.0.0.5:80": "Connection refused"})
    found = explain(report=report, to=(), external=("10.0.0.5:80", "10.0.0.6:80"))
    assert found.reaches
    assert failing(found) == {"endpoint": "10.0.0.5:80: Connection refused"}
    assert "10.0.0.6:80" in found.steps[-2].message


def test_an_external_name_needs_no_data_path() -> None:
    found = explain(to=(), external_name="db.example", report=None)
    assert (found.reaches, [each.name for each in found.steps][-1]) == (True, "port")


def test_an_instance_is_reached_at_its_address_on_the_same_node_and_at_a_published_port_from_others() -> None:
    near = explain_instance(CLIENT, instance("web-1"), "http", NODES)
    assert near.steps[-1].message == "the port http is reached at 172.17.0.3:8080"
    far = explain_instance(CLIENT, instance("web-1", "n2"), "8080", NODES)
    assert (far.reaches, far.steps[-1].message) == (True, "the port http is reached at 192.0.2.2:20001")
    hidden = explain_instance(CLIENT, instance("web-1", "n2", ports=()), "", NODES)
    assert (hidden.reaches, failing(hidden)["address"]) == (
        False,
        "web-1 publishes no port, so other nodes do not reach it",
    )
    gone = explain_instance(CLIENT, instance("web-1", phase=Phase.FAILED), "", NODES)
    assert failing(gone) == {"target": "web-1 is Failed"}


def test_the_states_of_endpoints_have_reasons_only_for_instances_without_traffic() -> None:
    found = endpoint_states(
        service(), [instance("web-1"), instance("web-0", ready=False), instance("app-0"), instance("web-2", "n2")]
    )
    assert [(each.instance.meta.name, bool(each.reason)) for each in found] == [
        ("web-0", True),
        ("web-1", False),
        ("web-2", False),
    ]
