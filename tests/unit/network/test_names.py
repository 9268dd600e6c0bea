"""The table of names of one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from mandor.model.instance import Instance, PortStatus
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.model.service import Service, ServicePort, ServiceSource, ServiceSpec, ServiceStatus
from mandor.network.addresses import ROUTED, VirtualRange
from mandor.network.base import NameRecord, NameTable, ServiceTarget
from mandor.network.endpoints import seen_instance
from mandor.network.names import ADDRESSES_MOST, clients_of, name_table
from tests.unit.network.test_endpoints import HERE, instance

SAME = PortStatus(name="http", port=8080, host=8080)


def service(name: str = "shop", **changes: Any) -> Service:
    given = {"port": {"http": ServicePort(port=80)}, "to": (ServiceSource(workload="web"),), **changes}
    meta = Meta(name=name, namespace="default")
    return Service(meta=meta, spec=ServiceSpec(**given), status=ServiceStatus(number=64))


def table(
    instances: Sequence[Instance], *services: Service, virtual: VirtualRange | None = ROUTED, **clients: str
) -> NameTable:
    seen = [each for each in (seen_instance(each, each.status, HERE) for each in instances) if each is not None]
    return name_table(services, seen, clients, HERE, virtual)


@pytest.mark.req("S2-30")
def test_a_service_has_its_virtual_addresses_and_its_ports() -> None:
    found = table([instance("web-0")], service(aliases=("Store", "a.b")))
    wanted = NameRecord(("10.93.0.64", "fd93::40"), (ServiceTarget("shop.default", 80),))
    assert found.records["shop.default"] == found.records["store.default"] == found.records["a.b.default"] == wanted
    assert found.records["_http._tcp.shop.default"].services == wanted.services
    assert found.reverse["10.93.0.64"] == found.reverse["fd93::40"] == "shop.default"


def test_without_virtual_addresses_a_service_has_the_instances_that_its_ports_reach() -> None:
    here, there = instance("web-0"), instance("web-1", node="n2")
    found = table([here, there], service(port={"http": ServicePort(port=8080)}), virtual=None)
    assert found.records["shop.default"].addresses == ("172.17.0.2",), "the port of the other node has another number"
    targets = {ServiceTarget("web-0.shop.default", 8080), ServiceTarget("web-1.shop.default", 20001)}
    assert set(found.records["_http._tcp.shop.default"].services) == targets
    assert found.records["web-1.shop.default"].addresses == ("192.0.2.2",)
    found = table([here, there], service(), virtual=None)
    assert found.records["shop.default"].addresses == (), "no instance listens on port 80"


def test_a_headless_service_has_the_addresses_of_its_ready_instances() -> None:
    instances = [instance("web-0"), instance("web-1"), instance("web-2", ready=False), instance("web-3", stop=True)]
    found = table(instances, service(headless=True))
    assert found.records["shop.default"].addresses == ("172.17.0.2", "172.17.0.3")
    assert found.records["web-2.shop.default"].addresses == ("172.17.0.4",), "an instance has its name while it runs"
    assert "web-3.shop.default" not in found.records


def test_services_outside_of_the_cluster_have_their_addresses_or_their_name() -> None:
    outside = service("db", to=(), external=("10.0.0.5:5432", "[fd00::1]:5432"), headless=True)
    other = service("mail", to=(), port={}, external_name="Mail.Example")
    found = table([], outside, other)
    assert found.records["db.default"].addresses == ("10.0.0.5", "fd00::1")
    assert found.records["mail.default"] == NameRecord(alias="mail.example")


def test_workloads_have_their_ready_instances_that_are_reached_at_their_own_ports() -> None:
    instances = [instance("web-0"), instance("web-1", node="n2"), instance("web-2", node="n2", ports=(SAME,))]
    found = table(instances)
    assert found.records["web.default"].addresses == ("172.17.0.2", "192.0.2.2")
    assert found.records["main.web.default"] == found.records["web.default"]
    assert found.records["web-1.default"].addresses == ("192.0.2.2",)
    assert found.reverse == {"172.17.0.2": "web-0.default"}, "the other address belongs to the node"


def test_an_instance_precedes_a_service_and_a_service_a_workload_and_a_workload_an_alias() -> None:
    aliased = instance("api-0", aliases=("web", "front", "web-0"))
    found = table([instance("web-0"), aliased], service("web"), service("web-0"))
    assert found.records["web-0.default"].addresses == ("172.17.0.2",)
    assert found.records["web.default"].addresses[0] == "10.93.0.64"
    assert found.records["front.default"].addresses == ("172.17.0.2",)
    assert table([instance("web-0"), aliased]).records["web.default"].addresses == ("172.17.0.2",)


def test_a_name_that_no_host_can_have_is_left_out() -> None:
    long = f"{'x' * 80}-1"
    found = table([instance(long)], service(headless=True, to=(ServiceSource(workload="x" * 80),)))
    assert not any("xx" in name for name in found.records if not name.endswith(f"{'x' * 80}.default"))
    assert f"{long}.default" not in found.records
    assert all(target.host in found.records for record in found.records.values() for target in record.services)


def test_a_name_has_a_bounded_number_of_addresses_with_those_of_the_node_first() -> None:
    far = [
        instance(f"web-{number}", node="n2", address="", host=f"10.1.{number // 250}.{number % 250 + 1}", ports=(SAME,))
        for number in range(ADDRESSES_MOST + 10)
    ]
    near = replace(instance("web-9"), meta=Meta(name="web-999", namespace="default"))
    found = table([*far, near])
    assert len(found.records["web.default"].addresses) == ADDRESSES_MOST
    assert found.records["web.default"].addresses[0] == near.status.address


def test_an_address_tells_the_namespace_of_a_client_unless_two_namespaces_share_it() -> None:
    one, two = (instance(f"web-{number}").status for number in range(2))
    none = replace(one, address="", phase=Phase.RUNNING)
    found = clients_of([("a", one), ("b", two), ("c", two), ("a", one), ("d", none)])
    assert found == {"172.17.0.2": "a"}
