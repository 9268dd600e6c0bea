"""Endpoints of services as one node sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mandor.model.instance import Instance, InstanceSpec, InstanceStatus, PortStatus, StopOrder
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.model.service import Service, ServicePort, ServiceSource, ServiceSpec, ServiceStatus
from mandor.network.addresses import LOOPBACK, NUMBER_MOST, ROUTED
from mandor.network.base import Frontend
from mandor.network.endpoints import Viewpoint, frontends, seen_instance

HERE = Viewpoint("n1", "192.0.2.1", zone="a")
HTTP = PortStatus(name="http", port=8080, host=20001)


def instance(name: str, node: str = "n1", **changes: Any) -> Instance:
    stop = StopOrder(reason="scaled down") if changes.pop("stop", False) else None
    spec = InstanceSpec(workload=name.rpartition("-")[0], release="r", index=0, node=node, stop=stop)
    status = InstanceStatus(
        **{
            "phase": Phase.RUNNING,
            "ready": True,
            "address": f"172.17.0.{int(name[-1]) + 2}",
            "host": f"192.0.2.{node[1:]}",
            "ports": (HTTP,),
            **changes,
        }
    )
    return Instance(meta=Meta(name=name, namespace="default"), spec=spec, status=status)


def service(**changes: Any) -> Service:
    given = {"port": {"http": ServicePort(port=80)}, "to": (ServiceSource(workload="web"),), **changes}
    status = ServiceStatus(number=64)
    return Service(meta=Meta(name="shop", namespace="default"), spec=ServiceSpec(**given), status=status)


def frontend(instances: Sequence[Instance], view: Viewpoint = HERE, **changes: Any) -> Frontend:
    seen = [each for each in (seen_instance(each, each.status, view) for each in instances) if each is not None]
    (found,) = frontends([service(**changes)], seen, view, ROUTED)
    return found


def reached(instances: Sequence[Instance], view: Viewpoint = HERE, **changes: Any) -> list[str]:
    return [f"{each.address}:{each.port}" for each in frontend(instances, view, **changes).endpoints]


def test_the_port_of_a_service_leads_to_the_port_of_the_task() -> None:
    found = frontend([instance("web-0")])
    assert (found.addresses, found.port) == (("10.93.0.64", "fd93::40"), 80)
    assert reached([instance("web-0")]) == ["172.17.0.2:8080"]


def test_an_instance_on_another_node_is_reached_at_the_published_port_of_its_node() -> None:
    assert reached([instance("web-1", "n2")]) == ["192.0.2.2:20001"]


def test_an_instance_on_the_network_of_its_node_is_reached_at_its_own_port() -> None:
    assert reached([instance("web-1", "n2", address="", ports=(PortStatus(name="http", port=8080),))]) == [
        "192.0.2.2:8080"
    ]


def test_an_instance_in_a_network_of_the_node_is_reached_at_its_own_addresses_without_published_ports() -> None:
    ports = (PortStatus(name="http", port=8080),)
    far = instance("web-1", "n2", address="10.92.1.3", address6="fd92:0:0:100::3", network="backend", ports=ports)
    member = Viewpoint("n1", "192.0.2.1", networks=frozenset({"backend"}))
    assert reached([far], member) == ["10.92.1.3:8080", "fd92:0:0:100::3:8080"]
    assert reached([far], member, port={"web": ServicePort(port=80, target=9090)}) == [
        "10.92.1.3:9090",
        "fd92:0:0:100::3:9090",
    ]
    assert reached([far]) == [], "a node that is not part of the network needs a published port"
    published = instance("web-1", "n2", address="10.92.1.3", network="backend")
    assert reached([published]) == ["192.0.2.2:20001"]


def test_an_instance_whose_port_is_not_published_gets_no_traffic_of_other_nodes() -> None:
    hidden = (PortStatus(name="http", port=8080),)
    assert reached([instance("web-0", ports=hidden), instance("web-1", "n2", ports=hidden)]) == ["172.17.0.2:8080"]


@pytest.mark.req("S2-46")
@pytest.mark.parametrize(
    "change",
    [{"ready": False}, {"stop": True}, {"phase": Phase.STARTING}, {"phase": Phase.LOST}, {"phase": Phase.STOPPING}],
)
def test_only_ready_instances_without_a_stop_order_receive_traffic(change: dict[str, Any]) -> None:
    assert reached([instance("web-0", **change), instance("web-1")]) == ["172.17.0.3:8080"]


@pytest.mark.parametrize(
    ("port", "reaches"),
    [
        (ServicePort(port=80, target="http"), ["172.17.0.2:8080"]),
        (ServicePort(port=80, target=8080), ["172.17.0.2:8080"]),
        (ServicePort(port=80, target="admin"), []),
        (ServicePort(port=80, target=9090), ["172.17.0.2:9090"]),
        (ServicePort(port=80, target="http", protocol="udp"), []),
    ],
)
def test_a_target_is_the_name_or_the_number_of_a_port(port: ServicePort, reaches: list[str]) -> None:
    assert reached([instance("web-0")], port={"web": port}) == reaches


def test_a_port_without_a_target_leads_to_the_port_of_its_name_or_of_its_number() -> None:
    assert reached([instance("web-0")], port={"web": ServicePort(port=8080)}) == ["172.17.0.2:8080"]
    assert reached([instance("web-0")], port={"web": ServicePort(port=80)}) == []


def test_an_undeclared_number_is_not_reached_on_another_node() -> None:
    assert reached([instance("web-1", "n2")], port={"web": ServicePort(port=80, target=9090)}) == []


def test_endpoints_on_the_same_node_are_preferred_while_one_is_ready() -> None:
    both = [instance("web-0"), instance("web-1", "n2")]
    assert reached(both, near="node") == ["172.17.0.2:8080"]
    assert reached([instance("web-0", ready=False), both[1]], near="node") == ["192.0.2.2:20001"]


def test_endpoints_in_the_same_zone_are_preferred_while_one_is_ready() -> None:
    far = [instance("web-1", "n2", zone="a"), instance("web-2", "n3", zone="b")]
    assert reached(far, near="zone") == ["192.0.2.2:20001"]
    assert reached(far[1:], near="zone") == ["192.0.2.3:20001"]


def test_a_group_limits_the_endpoints() -> None:
    assert reached([instance("web-0")], to=(ServiceSource(workload="web", group="api"),)) == []


def test_external_addresses_are_endpoints_unless_their_check_fails() -> None:
    given: dict[str, Any] = {
        "to": (),
        "external": ("10.0.0.5:5432", "10.0.0.6"),
        "port": {"sql": ServicePort(port=5432)},
    }
    assert reached([], **given) == ["10.0.0.5:5432", "10.0.0.6:5432"]
    found = frontends([service(**given)], [], HERE, ROUTED, failing={service().key: ["10.0.0.5:5432"]})
    assert [each.address for each in found[0].endpoints] == ["10.0.0.6"]


def test_a_loopback_address_of_a_node_is_replaced_by_the_address_of_the_machine() -> None:
    view = Viewpoint("n1", "127.0.0.1", machine_address="198.51.100.7")
    plain = instance("web-0", address="", host="127.0.0.1", ports=(PortStatus(name="http", port=8080),))
    assert reached([plain], view) == ["198.51.100.7:8080"]


@pytest.mark.parametrize("changes", [{"headless": True}, {"to": (), "external_name": "db.example"}])
def test_a_service_without_a_virtual_address_has_no_frontend(changes: dict[str, Any]) -> None:
    assert frontends([service(**changes)], [], HERE, ROUTED) == []


def test_every_number_has_an_address_in_every_range() -> None:
    assert ROUTED.addresses(NUMBER_MOST) == ("10.93.255.254", "fd93::fffe")
    assert LOOPBACK.addresses(64) == ("127.93.0.64",)
    with pytest.raises(ValueError, match="not the number of a service"):
        ROUTED.addresses(63)
