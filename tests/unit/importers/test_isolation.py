"""Isolation that a file of another tool asks for: kept, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.errors import Invalid
from mandor.importers.base import Imported, Options, Source
from mandor.importers.registry import import_files

POLICY = """apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {}, %s}
"""
INTERNAL = """services:
  db: {image: postgres, networks: [back]}
networks: {back: {internal: true}}
"""


def imported(text: str, name: str = "compose.yaml", **options: Any) -> Imported:
    return import_files([Source(name, text)], Options(**options))


@pytest.mark.req("S0-32")
@pytest.mark.parametrize("mode", ["service:vpn", "container:other"])
def test_a_network_shared_with_another_container_is_refused(mode: str) -> None:
    text = f"services:\n  vpn: {{image: v}}\n  web: {{image: w, network_mode: '{mode}'}}\n"
    with pytest.raises(Invalid, match="do not share a network") as caught:
        imported(text)
    assert (caught.value.facts["line"], "--unisolated" in (caught.value.hint or "")) == (3, True)
    notes = imported(text, unisolated=True).report.notes
    assert [(note.path, note.fate) for note in notes] == [("services.web.network_mode", "dropped")]


def test_a_service_on_an_internal_network_alone_is_refused() -> None:
    with pytest.raises(Invalid, match="the network back is internal"):
        imported(INTERNAL)
    notes = imported(INTERNAL, unisolated=True).report.notes
    assert ("networks.back.internal", "dropped") in [(note.path, note.fate) for note in notes]


@pytest.mark.parametrize("networks", ["[back, front]", "[default]"])
def test_a_service_with_another_network_reaches_the_outside_in_compose_too(networks: str) -> None:
    text = INTERNAL.replace("[back]", networks).replace("networks: {", "networks: {front: {}, ")
    assert [each.manifest["name"] for each in imported(text).made] == ["db"]


def test_an_internal_network_that_is_on_each_node_keeps_its_isolation() -> None:
    (made,) = imported(INTERNAL.replace("internal: true", "internal: true, external: true")).made
    assert made.manifest["options"]["docker"]["network"] == "back"


@pytest.mark.parametrize(
    "spec", ["ingress: []", "policyTypes: [Egress]", "ingress: [{from: [{podSelector: {}}]}]", "egress: [{}]"]
)
def test_a_network_policy_is_refused(spec: str) -> None:
    with pytest.raises(Invalid, match="traffic between instances is not restricted") as caught:
        imported(POLICY % spec)
    assert caught.value.facts["line"] == 2
    notes = imported(POLICY % spec, unisolated=True).report.notes
    assert [(note.path, note.fate) for note in notes] == [("kind", "dropped")]


def test_network_policies_of_other_tools_are_refused() -> None:
    with pytest.raises(Invalid, match="is not restricted"):
        imported("apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: a}\n")


def test_a_network_policy_that_allows_all_traffic_is_left_out() -> None:
    found = imported(POLICY % "policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]")
    assert [note.text for note in found.report.notes] == ["it allows all traffic, as without it"]


def _nomad(driver: str, more: str = "") -> dict[str, Any]:
    command = 'jar_path = "a.jar"' if driver == "java" else 'command = "/bin/date"'
    text = f'job "a" {{ group "g" {{ task "t" {{\ndriver = "{driver}"\n{more}\nconfig {{ {command} }}\n}} }} }}'
    found: dict[str, Any] = imported(text, "a.nomad").made[-1].manifest["groups"]["g"]["tasks"]["t"]
    return found


@pytest.mark.req("S0-32")
@pytest.mark.parametrize("driver", ["exec", "java"])
def test_an_isolated_driver_of_nomad_becomes_a_confined_process(driver: str) -> None:
    task = _nomad(driver)
    assert task["options"]["process"]["confine"] is True
    assert task["security"] == {"user": "nobody"}
    assert _nomad(driver, 'user = "1000"')["security"] == {"user": 1000}
    with pytest.raises(Invalid, match="not confined as root"):
        _nomad(driver, 'user = "root"')


def test_raw_exec_of_nomad_is_a_plain_process() -> None:
    assert "options" not in _nomad("raw_exec")
