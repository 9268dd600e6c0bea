"""The ports and the targets of `mandor port-forward`."""

from __future__ import annotations

from typing import Any

import click
import pytest

from mandor.cli.commands.forward import PortPair, parse_pair
from mandor.cli.reaching import ready_instances, service_port, target_port
from mandor.errors import NotFound


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("8080:http", PortPair(8080, "http")),
        ("8080:80", PortPair(8080, "80")),
        ("8080", PortPair(8080, "8080")),
        (":80", PortPair(0, "80")),
        ("http", PortPair(0, "http")),
    ],
)
def test_a_pair_names_the_local_and_the_remote_port(text: str, pair: PortPair) -> None:
    assert parse_pair(text) == pair


@pytest.mark.parametrize("text", ["", ":", "8080:", "70000:80", "0:80", "a:80", "1:2:3"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_pair(text)


def test_a_port_of_a_service_has_a_name_or_a_number() -> None:
    ports = {"http": 80, "sql": {"port": 5432, "target": "db"}}
    assert [service_port("shop", ports, each) for each in ("http", "80", "5432")] == ["http", "http", "sql"]
    with pytest.raises(NotFound) as caught:
        service_port("shop", ports, "81")
    assert caught.value.hint == "its ports: http (80), sql (5432)"


def test_a_port_of_a_service_leads_to_its_target_to_the_port_of_its_name_or_to_its_number() -> None:
    declared = [{"name": "http", "port": 8080}]
    assert target_port("sql", {"port": 5432, "target": "db"}, declared) == "db"
    assert target_port("http", 80, declared) == "http"
    assert target_port("admin", {"port": 81}, declared) == "81"


def instance(name: str, workload: str = "shop", **status: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"workload": workload, "group": status.pop("group", "main")}
    if stop := status.pop("stop", None):
        spec["stop"] = stop
    return {"meta": {"name": name}, "spec": spec, "status": {"phase": "Running", "ready": True, **status}}


def test_only_ready_instances_of_the_sources_are_chosen() -> None:
    found = [
        instance("a"),
        instance("b", ready=False),
        instance("c", phase="Starting"),
        instance("d", stop={"reason": "scaled down"}),
        instance("e", "other"),
        instance("f", "cache", group="web"),
        instance("g", "cache", group="db"),
    ]
    sources = [{"workload": "shop"}, {"workload": "cache", "group": "web"}]
    assert [each["meta"]["name"] for each in ready_instances(found, sources)] == ["a", "f"]
