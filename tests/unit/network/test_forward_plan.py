"""Addresses that a forwarded connection may lead to: those of the instance, and no other ones of its node."""

from __future__ import annotations

import pytest

from mandor.errors import Invalid, NotFound
from mandor.model.instance import InstanceStatus, PortStatus
from mandor.model.phase import Phase
from mandor.network.forward_plan import ForwardTarget, forward_targets

HTTP = PortStatus(name="http", port=8080, host=20001)
DNS = PortStatus(name="dns", port=53, protocol="udp")


def status(address: str, *ports: PortStatus, host: str = "192.0.2.1") -> InstanceStatus:
    return InstanceStatus(phase=Phase.RUNNING, address=address, host=host if ports else "", ports=ports)


@pytest.mark.parametrize("port", ["http", "8080"])
def test_a_declared_port_leads_to_the_instance_and_then_to_its_published_port(port: str) -> None:
    found = forward_targets("web-0", status("172.17.0.2", HTTP), port)
    assert found == [ForwardTarget("172.17.0.2", 8080, own=True), ForwardTarget("192.0.2.1", 20001, own=False)]


def test_an_instance_with_an_address_is_reached_at_ports_that_it_does_not_declare() -> None:
    assert forward_targets("web-0", status("172.17.0.2"), "9000") == [ForwardTarget("172.17.0.2", 9000, own=True)]


@pytest.mark.parametrize("address", ["", "127.0.0.1", "::1", "192.0.2.1"])
@pytest.mark.parametrize("port", ["22", "20001", "0", "70000", "ssh"])
def test_other_ports_of_the_node_are_never_reached(address: str, port: str) -> None:
    with pytest.raises(NotFound, match="no port"):
        forward_targets("web-0", status(address, HTTP), port)


def test_an_instance_on_the_network_of_its_node_is_reached_at_its_declared_port() -> None:
    plain = PortStatus(name="http", port=8080)
    assert forward_targets("web-0", status("", plain), "http") == [
        ForwardTarget("127.0.0.1", 8080, own=False),
        ForwardTarget("192.0.2.1", 8080, own=False),
    ]


def test_a_udp_port_is_refused() -> None:
    with pytest.raises(Invalid, match="udp port"):
        forward_targets("dns-0", status("172.17.0.2", DNS), "dns")


def test_the_error_names_the_ports_of_the_instance() -> None:
    with pytest.raises(NotFound) as caught:
        forward_targets("web-0", status("", HTTP, DNS), "admin")
    assert caught.value.hint == "its TCP ports: http (8080)"
