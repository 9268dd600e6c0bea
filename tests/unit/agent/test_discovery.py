"""Addresses of other instances, as a container and as a process of the node reach them."""

from __future__ import annotations

from dataclasses import replace

from mandor.agent.discovery import ReachableInstance, hosts_file, reached_by_container, variables
from mandor.agent.fingerprint import machine_address
from mandor.lib.loopback import is_loopback

WEB = ReachableInstance(
    name="web-0",
    workload="web",
    group="main",
    near=False,
    ready=True,
    address="127.0.0.1",
    ports=(("http", 8000),),
    alike=True,
)
OWN = replace(WEB, name="db-0", workload="db", address="172.17.0.5", near=True)


def test_a_container_reaches_a_node_with_a_loopback_address_at_an_address_of_the_machine() -> None:
    around = reached_by_container([OWN, WEB], "10.1.2.3")
    assert "10.1.2.3 web-0 main.web web\n" in hosts_file(around, ["client-0"])
    assert "172.17.0.5 db-0" in hosts_file(around, ["client-0"])
    assert variables(around, "client-0")["MANDOR_ADDR_WEB_HTTP"] == "10.1.2.3:8000"


def test_without_another_address_of_the_machine_the_loopback_address_stays() -> None:
    assert list(reached_by_container([WEB], "")) == [WEB]


def test_addresses_of_other_machines_stay() -> None:
    far = replace(WEB, address="10.9.9.9")
    assert list(reached_by_container([far], "10.1.2.3")) == [far]


def test_the_address_of_the_machine_is_never_a_loopback_address() -> None:
    assert not machine_address() or not is_loopback(machine_address())
