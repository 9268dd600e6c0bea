"""Validation of routes and of `expose`, and the certificate that a route uses."""

from __future__ import annotations

import re

import pytest

from mandor.errors import Invalid
from mandor.model.manifest import load_manifests
from mandor.model.meta import Meta
from mandor.model.route import Route, RouteCertificate, RouteSpec, RouteStatus, RouteTarget
from mandor.model.service import ServicePort, choose_port
from mandor.model.workload import Workload

TO = "to: [{service: shop}]"


def load(text: str) -> Route:
    (document,) = load_manifests(text)
    assert isinstance(document.object, Route)
    return document.object


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{{host: Shop.Example, {TO}}}", "'Shop.Example' is not a host name"),
        (f"{{host: 'shop.example:80', {TO}}}", "is not a host name"),
        (f"{{host: '*', {TO}}}", "is not a host name"),
        (f"{{host: 'a.*.example', {TO}}}", "is not a host name"),
        (f'{{host: "a\\nbind :1", {TO}}}', "is not a host name"),
        (f"{{path: api, {TO}}}", "'api' is not a path"),
        (f"{{path: '/a b', {TO}}}", "is not a path"),
        (f'{{path: "/a\\nb", {TO}}}', "is not a path"),
        (f"{{path: '/(a+)+$', path_match: regex, {TO}}}", "repeats a group"),
        (f"{{path: '/(a|b)*', path_match: regex, {TO}}}", "repeats a group"),
        (f"{{path: '/.*.*.*=', path_match: regex, {TO}}}", "without a clear end"),
        (f"{{path: '/(a)\\1', path_match: regex, {TO}}}", "refers to a group"),
        (f"{{path: '/{'a' * 200}', path_match: regex, {TO}}}", "at most 128 characters"),
        (f"{{headers: {{'a b': x}}, {TO}}}", "is not the name of a header"),
        (f"{{headers: {{Host: x}}, {TO}}}", "is not the name of a header"),
        (f'{{headers: {{a: "x\\ny"}}, {TO}}}', "printable ASCII"),
        (f"{{headers: {{a: x, A: y}}, {TO}}}", "the same name"),
        (f"{{methods: [get], {TO}}}", "'get' is not a method"),
        ("{host: a.example}", "set either `to` or `redirect`"),
        (f"{{redirect: {{host: b.example}}, {TO}}}", "set either `to` or `redirect`"),
        ("{redirect: {}}", "a redirect needs"),
        ("{redirect: {path: /x, code: 200}}", "not the status of a redirect"),
        ("{to: [{service: a}, {service: a}]}", "the same service"),
        ("{to: [{service: a, weight: 0}]}", "all weights are 0"),
        (f"{{to: [{', '.join(f'{{service: s{number}}}' for number in range(17))}]}}", "at most 16"),
        (f"{{protocol: udp, port: 53, {TO}}}", "cannot route UDP"),
        (f"{{protocol: tcp, {TO}}}", "needs the port"),
        (f"{{protocol: tcp, port: 1, host: a.example, {TO}}}", "`host` cannot be used"),
        (f"{{protocol: tcp, port: 1, tls: auto, {TO}}}", "`tls: auto`"),
        (f"{{port: 80, {TO}}}", "`port` needs `protocol: tcp`"),
        (f"{{tls: auto, {TO}}}", "`tls: auto` needs a `host`"),
        (f"{{tls: 'a b', {TO}}}", "is not a name of a secret"),
        (f"{{rate: {{requests: 1, per: 2h}}, {TO}}}", "out of range"),
        (f"{{timeouts: {{connect: 0s}}, {TO}}}", "out of range"),
    ],
)
def test_a_route_that_cannot_work_is_refused(text: str, message: str) -> None:
    with pytest.raises(Invalid, match=re.escape(message)):
        load("{kind: route, name: a, " + text[1:])


@pytest.mark.parametrize(
    "text",
    [
        f"{{host: '*.shop.example', path: /, {TO}}}",
        f"{{path: '/v[0-9]+/[^/]+/items/[^/]+/x', path_match: regex, {TO}}}",
        f"{{path: '/(a|b)/.*', path_match: regex, {TO}}}",
        f"{{headers: {{X-Canary: ''}}, methods: [GET, POST], {TO}}}",
        "{host: old.example, redirect: {host: new.example, code: 308}}",
        f"{{protocol: tcp, port: 5432, tls: db-cert, {TO}}}",
        f"{{host: a.example, retries: 2, rate: {{requests: 10, per: 1m}}, body_limit: 1Mi, upstream: h2, {TO}}}",
    ],
)
def test_a_route_with_all_kinds_of_conditions_is_read(text: str) -> None:
    assert load("{kind: route, name: a, " + text[1:]).spec.certificate


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("", "auto"), ("tls: auto, ", "auto"), ("tls: off, ", "off"), ("tls: my-cert, ", "my-cert")],
)
def test_a_route_with_a_host_has_a_certificate_unless_it_is_off(text: str, wanted: str) -> None:
    assert load(f"{{kind: route, name: a, host: a.example, {text}{TO}}}").spec.certificate == wanted


def test_a_route_without_a_host_has_no_certificate_by_default() -> None:
    assert load(f"{{kind: route, name: a, {TO}}}").spec.certificate == "off"


def test_the_certificate_of_an_automatic_route_is_the_issued_secret() -> None:
    spec = RouteSpec(host="a.example", to=(RouteTarget(service="a"),))
    route = Route(meta=Meta(name="a", namespace="default"), spec=spec)
    assert not route.secret
    issued = route.changed(status=RouteStatus(certificate=RouteCertificate(secret="a-tls")))
    assert issued.secret == "a-tls"
    assert not issued.changed(spec=RouteSpec(tls="off", to=spec.to)).secret


def test_the_status_refuses_challenges_that_could_change_a_proxy_file() -> None:
    with pytest.raises(ValueError, match="characters"):
        RouteStatus(challenges={"token": "a\nb"})
    with pytest.raises(ValueError, match="characters"):
        RouteStatus(challenges={"../x": "a"})


def workload(expose: str, ports: str = "{http: 80}") -> str:
    declared = "{http: 8080, admin: 9000}"
    return f"{{name: a, image: b, ports: {declared}, services: [{{port: {ports}, expose: {expose}}}]}}"


def test_a_service_of_a_workload_can_be_exposed() -> None:
    (document,) = load_manifests(workload("{host: shop.example, path: /shop, tls: off}"))
    assert isinstance(document.object, Workload)
    expose = document.object.spec.services[0].expose
    assert expose is not None
    assert (expose.host, expose.path, expose.tls) == ("shop.example", "/shop", "off")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (workload("{path: /}"), "`host` is missing"),
        (workload("{host: 'not a host'}"), "is not a host name"),
        (workload("{host: a.example, port: sql}"), "`expose` needs a TCP port"),
        (workload("{host: a.example}", "{admin: 90, x: {port: 80, target: http}}"), "`expose` needs a TCP port"),
    ],
)
def test_an_exposure_that_cannot_work_is_refused(text: str, message: str) -> None:
    with pytest.raises(Invalid, match=re.escape(message)):
        load_manifests(text)


def test_a_route_means_the_only_tcp_port_or_the_one_named_http() -> None:
    http, admin = ServicePort(port=80), ServicePort(port=90)
    udp = ServicePort(port=53, protocol="udp")
    assert choose_port({"web": http, "dns": udp}, None) == "web"
    assert choose_port({"http": http, "admin": admin}, None) == "http"
    assert choose_port({"web": http, "admin": admin}, None) is None
    assert choose_port({"web": http, "admin": admin}, 90) == "admin"
    assert choose_port({"web": http, "dns": udp}, "dns") is None
