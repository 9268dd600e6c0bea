"""The URL that `mandor open` chooses."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.cli.commands.open import find_url
from mandor.errors import NotFound


def instance(name: str, *ports: tuple[str, int], ready: bool = True, host: str = "192.0.2.1") -> dict[str, Any]:
    declared = [{"name": each, "port": 80, "host": number} for each, number in ports]
    status = {"phase": "Running", "ready": ready, "host": host, "ports": declared}
    return {"meta": {"name": name}, "spec": {"workload": name.rpartition("-")[0]}, "status": status}


def route(name: str, service: str, **spec: Any) -> dict[str, Any]:
    return {"meta": {"name": name}, "spec": {"to": [{"service": service}], **spec}}


SHOP = {"meta": {"name": "shop"}, "spec": {"to": [{"workload": "web"}], "port": {"http": {"port": 80}}}}


@pytest.mark.parametrize("name", ["shop", "web", "front"])
def test_a_route_comes_before_a_published_port(name: str) -> None:
    front = route("front", "shop", host="shop.example", path="/app", tls="cert")
    assert find_url(name, [front], [SHOP], [instance("web-0", ("http", 20001))]) == "https://shop.example/app"


@pytest.mark.parametrize("spec", [{"host": "*.example"}, {}, {"host": "a", "protocol": "tcp", "port": 5432}])
def test_a_route_that_is_no_single_url_is_skipped(spec: dict[str, Any]) -> None:
    found = find_url("shop", [route("front", "shop", **spec)], [SHOP], [instance("web-0", ("http", 20001))])
    assert found == "http://192.0.2.1:20001/"


@pytest.mark.parametrize("name", ["shop", "web", "web-0"])
def test_a_published_port_of_a_ready_instance_is_used_web_ports_first(name: str) -> None:
    ports = (("admin", 20000), ("http", 20001))
    assert find_url(name, [], [SHOP], [instance("web-0", *ports)]) == "http://192.0.2.1:20001/"


def test_an_address_of_ipv6_is_in_brackets_and_a_port_https_has_its_scheme() -> None:
    assert find_url("web", [], [], [instance("web-0", ("https", 443), host="fd00::1")]) == "https://[fd00::1]:443/"


def test_an_instance_that_is_not_ready_is_not_chosen() -> None:
    found = find_url("web", [], [], [instance("web-0", ("http", 1), ready=False), instance("web-1", ("http", 2))])
    assert found == "http://192.0.2.1:2/"


def test_without_a_route_and_a_published_port_the_hint_is_to_forward_one() -> None:
    with pytest.raises(NotFound) as caught:
        find_url("web", [], [SHOP], [instance("web-0")])
    assert caught.value.hint is not None
    assert "mandor port-forward service/shop" in caught.value.hint
    with pytest.raises(NotFound, match="no route, service"):
        find_url("none", [], [SHOP], [instance("web-0")])
