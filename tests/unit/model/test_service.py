"""Validation of services, and the host ports of their targets."""

from __future__ import annotations

import re

import pytest

from mandor.errors import Invalid
from mandor.model.group import AUTO
from mandor.model.manifest import load_manifests
from mandor.model.service import split_endpoint
from mandor.model.workload import Workload


def load(text: str) -> Workload:
    (document,) = load_manifests(text)
    assert isinstance(document.object, Workload)
    return document.object


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{name: a, image: b, services: [{port: {http: 80}}]}", "no task has the tcp port 'http'"),
        ("{name: a, image: b, ports: {http: 80}, services: [{port: {x: {port: 80, target: web}}}]}", "port 'web'"),
        ("{name: a, image: b, ports: {http: 80}, services: [{group: x, port: {http: 80}}]}", "no group 'x'"),
        ("{name: a, image: b, ports: {http: 80}, services: [{port: {http: 1}}, {port: {http: 2}}]}", "the same name"),
        ("{name: a, image: b, ports: {http: 80}, services: [{}]}", "has no port"),
        ("{name: a, image: b, ports: {p: 80}, services: [{port: {p: 80}, drain: 2h}]}", "is out of range"),
        ("{kind: service, name: a, port: {x: 1}, external: [nowhere]}", "not an IP address"),
        ("{kind: service, name: a, port: {x: 1}, external: ['10.0.0.1:0']}", "no valid port"),
        ("{kind: service, name: a, port: {x: 1, y: 1}, to: [{workload: w}]}", "the same number 1"),
        ("{kind: service, name: a, to: [{workload: w}]}", "has no port"),
        ("{kind: service, name: a, port: {x: 1}, to: [{workload: w}], external_name: b}", "only one of"),
        ("{kind: service, name: a, external_name: 'no name'}", "not a host name"),
        ("{kind: service, name: a, port: {x: 1}, to: [{workload: w}], aliases: ['a b']}", "not a host name"),
    ],
)
def test_a_service_that_cannot_work_is_refused(text: str, message: str) -> None:
    with pytest.raises(Invalid, match=re.escape(message)):
        load_manifests(text)


def test_the_target_of_a_service_is_published_on_the_node() -> None:
    given = load("{name: a, image: b, ports: {http: 8080, admin: 9000}, services: [{port: {http: 80}}]}")
    ports = given.spec.template["main"].ports
    assert (ports["http"].host, ports["admin"].host) == (AUTO, None)
    assert given.spec.groups["main"].ports["http"].host is None, "the manifest stays as written"


@pytest.mark.parametrize(
    "text",
    [
        "{name: a, command: [server], ports: {http: 8080}, services: [{port: {http: 80}}]}",
        "{name: a, image: b, options: {docker: {network: host}}, ports: {http: 8080}, services: [{port: {http: 80}}]}",
        "{name: a, image: b, ports: {http: {port: 8080, host: 80}}, services: [{port: {http: 80}}]}",
    ],
)
def test_a_port_that_is_on_the_node_already_stays_as_it_is(text: str) -> None:
    given = load(text)
    assert given.spec.template["main"].ports == given.spec.groups["main"].ports


def test_an_address_may_have_a_port() -> None:
    assert split_endpoint("10.0.0.5:5432") == ("10.0.0.5", 5432)
    assert split_endpoint("[fd00::1]:80") == ("fd00::1", 80)
    assert split_endpoint("fd00::1") == ("fd00::1", None)
