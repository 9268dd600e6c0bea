"""Services of Compose: the names under which workloads are found, and the ports that belong to them."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.errors import Invalid
from mandor.importers.base import Imported
from mandor.lib.yaml12 import dump
from mandor.model.manifest import load_files
from tests.unit.importers.test_compose import imported


def services_of(text: str) -> dict[str, Any]:
    """The services of each workload, after the check that `mandor apply` makes."""
    found = imported(text)
    load_files([(each.file, dump(each.manifest)) for each in found.made])
    return {each.manifest["name"]: each.manifest.get("services") for each in found.made}


def notes(found: Imported, path: str) -> list[str]:
    return [note.text for note in found.report.notes if note.path == path]


@pytest.mark.req("S0-32", "S2-28")
@pytest.mark.parametrize(
    ("keys", "ports"),
    [
        ("ports: ['8080:80']", {"port-80": 80}),
        ("ports: [80, '9000:80']", {"port-80": 80}),
        ("expose: [80, 53/udp]", {"port-80": 80, "port-53-udp": {"port": 53, "protocol": "udp"}}),
        ("ports: ['127.0.0.1:8080:80']", {"port-80": 80}),
        ("ports: [{name: http, target: 80, published: 8080}]", {"http": 80}),
    ],
)
def test_a_service_has_the_ports_of_its_containers_whatever_is_published(keys: str, ports: dict[str, Any]) -> None:
    assert services_of(f"services: {{web: {{image: a, {keys}}}}}") == {"web": [{"port": ports}]}


@pytest.mark.req("S0-32")
@pytest.mark.parametrize(
    ("keys", "ports"),
    [
        ("environment: [DB=db:5433]", {"port-5433": 5433}),
        ("environment: [DATABASE_URL=postgresql+psycopg://me:secret@db/shop]", {"port-5432": 5432}),
        ("command: [serve, --db, 'http://db/x', 'db:99999', 'mydb:1']", {"port-80": 80}),
        ("environment: [DB=database:5433]", {"port-5433": 5433}),
        ("environment: [DB_HOST=db]", {"port-3306": 3306}),
        ("depends_on: [db]", {"port-3306": 3306}),
    ],
)
def test_ports_that_no_key_declares_are_those_that_others_use(keys: str, ports: dict[str, Any]) -> None:
    text = f"services: {{db: {{image: 'x.example/mysql:8', hostname: database}}, web: {{image: a, {keys}}}}}"
    assert services_of(text)["db"] == [{"port": ports, "aliases": ["database"]}]
    (note,) = notes(imported(text), "services.db")
    assert str(next(iter(ports.values()))) in note


def test_a_file_beside_the_compose_file_names_a_port_too() -> None:
    text = "services: {php: {image: mine}, web: {image: nginx, volumes: ['./a.conf:/etc/a.conf']}}"
    found = imported(text, {"shop/a.conf": "fastcgi_pass php:9000;\n"})
    assert found.made[0].manifest["services"] == [{"port": {"port-9000": 9000}}]


def test_a_service_of_unknown_ports_keeps_its_aliases_and_is_reported_if_others_name_it() -> None:
    text = "services: {db: {image: mine, hostname: base}, web: {image: a, environment: [DB=db]}}"
    assert services_of(text) == {"db": None, "web": None}
    found = imported(text)
    assert found.made[0].manifest["aliases"] == ["base"]
    assert notes(found, "services.db") == ["its name resolves on its own node only: no port is known"]
    assert notes(imported("services: {db: {image: mine}, web: {image: a}}"), "services.db") == []


def test_a_name_that_two_services_have_is_a_service_of_both() -> None:
    text = """
services:
  one: {image: a, expose: [80], networks: {n: {aliases: [web, first]}}}
  two: {image: b, expose: [80, 81], networks: {n: {aliases: [web]}}}
networks: {n: }
"""
    found = imported(text)
    load_files([(each.file, dump(each.manifest)) for each in found.made])
    assert [each.manifest["services"][0].get("aliases") for each in found.made[:2]] == [["first"], None]
    assert found.made[2].manifest == {
        "kind": "service",
        "name": "web",
        "labels": {"project": "shop"},
        "port": {"port-80": 80, "port-81": 81},
        "to": [{"workload": "one"}, {"workload": "two"}],
    }


def test_names_lead_to_instances_if_the_file_asks_for_it() -> None:
    text = "services: {web: {image: a, expose: [80], deploy: {endpoint_mode: MODE}}}"
    assert services_of(text.replace("MODE", "dnsrr")) == {"web": [{"port": {"port-80": 80}, "headless": True}]}
    assert services_of(text.replace("MODE", "vip")) == {"web": [{"port": {"port-80": 80}}]}
    with pytest.raises(Invalid, match="neither vip nor dnsrr"):
        imported(text.replace("MODE", "magic"))


def test_work_that_ends_and_work_on_the_nodes_network_have_no_service() -> None:
    text = """
services:
  job: {image: a, expose: [80]}
  web: {image: a, ports: ['80:80'], network_mode: host, depends_on: {job: {condition: service_completed_successfully}}}
"""
    assert services_of(text) == {"job": None, "web": None}
