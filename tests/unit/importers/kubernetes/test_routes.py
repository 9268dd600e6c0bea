"""Ingresses and routes of the Gateway API become routes, which a server accepts; the rest is reported."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.errors import Invalid
from mandor.importers.base import Imported, Options, Source
from mandor.importers.kubernetes.importer import KubernetesImporter
from mandor.importers.registry import convert
from mandor.lib.yaml12 import dump
from mandor.model.manifest import load_files
from tests.unit.importers.kubernetes.imports import deployment, imported, indented, service

NGINX = "nginx.ingress.kubernetes.io/"


def ingress(paths: str, *annotations: str, tls: str = "", host: str = "shop.example", name: str = "shop") -> str:
    noted = "".join(f"    {each}\n" for each in annotations)
    return (
        f"apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: {name}\n"
        + (f"  annotations:\n{noted}" if annotations else "")
        + f"spec:\n{f'  tls: {tls}' if tls else ''}\n  rules:\n  - host: {host}\n    http:\n      paths:\n"
        + indented(paths, 6)
    )


def path(text: str = "/", kind: str = "Prefix", backend: str = "web", port: str = "number: 80") -> str:
    return f"- {{path: '{text}', pathType: {kind}, backend: {{service: {{name: {backend}, port: {{{port}}}}}}}}}"


def routes(found: Imported) -> list[dict[str, Any]]:
    """The routes without their kind, after the check that `mandor apply` makes."""
    load_files([(each.file, dump(each.manifest)) for each in found.made])
    made = [each.manifest for each in found.made if each.manifest.get("kind") == "route"]
    return [{key: value for key, value in each.items() if key != "kind"} for each in made]


def only_route(text: str) -> dict[str, Any]:
    (found,) = routes(imported(deployment(), service("[{port: 80, name: http}]"), text))
    return {key: value for key, value in found.items() if key not in {"name", "host", "tls", "to"}}


WEB = {"service": "web", "port": 80}


@pytest.mark.req("S0-32", "S2-30")
def test_an_ingress_is_a_route_for_each_path() -> None:
    text = ingress(
        "\n".join([path(), path("/api", "Exact", port="name: http"), path("/x", backend="other")]),
        tls="[{hosts: [shop.example], secretName: cert}]",
    )
    found = imported(deployment(), service("[{port: 80, name: http}]"), text)
    head = {"host": "shop.example", "tls": "cert"}
    assert routes(found) == [
        {"name": "shop", **head, "path": "/", "to": [WEB]},
        {"name": "shop-2", **head, "path": "/api", "path_match": "exact", "to": [{"service": "web", "port": "http"}]},
        {"name": "shop-3", **head, "path": "/x", "to": [{"service": "other", "port": 80}]},
    ]
    assert [note.text for note in found.report.notes] == ["there must be a service other: it is not in these files"]


@pytest.mark.req("S2-30")
@pytest.mark.parametrize(
    ("tls", "annotation", "host", "wanted"),
    [
        ("", "", "shop.example", "off"),
        ("[{hosts: [other.example], secretName: cert}]", "", "shop.example", "off"),
        ("[{hosts: ['*.example'], secretName: cert}]", "", "shop.example", "cert"),
        ("[{secretName: cert}]", "", "shop.example", "cert"),
        ("[{hosts: [shop.example], secretName: cert}]", "cert-manager.io/cluster-issuer: le", "shop.example", "auto"),
        ("[{hosts: [shop.example], secretName: cert}]", "kubernetes.io/tls-acme: 'true'", "shop.example", "auto"),
        ("[{hosts: [shop.example], secretName: cert}]", "kubernetes.io/tls-acme: 'false'", "shop.example", "cert"),
    ],
)
def test_certificates_of_an_ingress(tls: str, annotation: str, host: str, wanted: str) -> None:
    text = ingress(path(), *([annotation] if annotation else []), tls=tls, host=host)
    assert [each["tls"] for each in routes(imported(deployment(), service(), text))] == [wanted]


def test_the_default_backend_answers_for_all_hosts() -> None:
    text = (
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: all}\n"
        "spec: {defaultBackend: {service: {name: web, port: {number: 80}}}}\n"
    )
    assert routes(imported(deployment(), service(), text)) == [{"name": "all", "path": "/", "tls": "off", "to": [WEB]}]


def test_an_ingress_of_an_older_version_is_read() -> None:
    text = (
        "apiVersion: extensions/v1beta1\nkind: Ingress\nmetadata: {name: old}\n"
        "spec: {rules: [{http: {paths: [{path: /a, backend: {serviceName: web, servicePort: 80}}]}}]}\n"
    )
    assert routes(imported(deployment(), service(), text)) == [{"name": "old", "path": "/a", "tls": "off", "to": [WEB]}]


@pytest.mark.req("S0-32")
@pytest.mark.parametrize(
    ("where", "annotations", "wanted"),
    [
        (path("/api"), ["rewrite-target: /"], {"path": "/api(/.*)?", "path_match": "regex", "rewrite": {"path": "/"}}),
        (path("/api(/|$)(.*)"), ["rewrite-target: /$2"], {"path": "/api", "rewrite": {"path": "/"}}),
        (path("/api/(.*)"), ["rewrite-target: /v1/$1"], {"path": "/api", "rewrite": {"path": "/v1"}}),
        (path("/(.*)"), ["rewrite-target: /$1"], {"path": "/"}),
        (path("/a.*x", "ImplementationSpecific"), ["use-regex: 'true'"], {"path": "/a.*x.*", "path_match": "regex"}),
        (path(), ["proxy-body-size: 8m"], {"path": "/", "body_limit": "8Mi"}),
        (path(), ["proxy-body-size: '0'"], {"path": "/"}),
        (
            path(),
            ["proxy-connect-timeout: '10'", "proxy-read-timeout: '300'"],
            {"path": "/", "timeouts": {"connect": "10s", "response": "5m"}},
        ),
        (path(), ["limit-rps: '20'"], {"path": "/", "rate": {"requests": 20, "per": "1s"}}),
        (path(), ["backend-protocol: GRPC"], {"path": "/", "upstream": "h2"}),
        (path(), ["upstream-vhost: inner.example"], {"path": "/", "rewrite": {"host": "inner.example"}}),
        (path(), ["proxy-next-upstream-tries: '3'"], {"path": "/", "retries": 2}),
        (
            path(),
            ["permanent-redirect: https://new.example/x"],
            {"path": "/", "redirect": {"code": 301, "scheme": "https", "host": "new.example", "path": "/x"}},
        ),
    ],
)
def test_annotations_of_ingress_nginx(where: str, annotations: list[str], wanted: dict[str, Any]) -> None:
    assert only_route(ingress(where, *(NGINX + each for each in annotations))) == wanted


def test_https_is_not_forced_if_the_ingress_says_so() -> None:
    tls = "[{hosts: [shop.example], secretName: cert}]"
    assert only_route(ingress(path(), f"{NGINX}ssl-redirect: 'false'", tls=tls))["https_redirect"] is False
    assert "https_redirect" not in only_route(ingress(path(), f"{NGINX}ssl-redirect: 'false'"))


def test_a_canary_gets_its_share_of_the_main_route_and_the_requests_with_its_header() -> None:
    annotations = [f"{NGINX}canary: 'true'", f"{NGINX}canary-weight: '20'", f"{NGINX}canary-by-header: x-new"]
    canary = ingress(path(backend="next"), *annotations, name="canary")
    found = routes(imported(deployment(), service(), ingress(path()), canary))
    assert [each["to"] for each in found] == [
        [WEB | {"weight": 80}, {"service": "next", "port": 80, "weight": 20}],
        [{"service": "next", "port": 80}],
    ]
    assert found[1]["headers"] == {"x-new": "always"}
    alone = imported(deployment(), service(), canary)
    assert routes(alone) == []
    assert "it is a canary" in next(note.text for note in alone.report.notes if note.path == "kind")


@pytest.mark.parametrize("name", ["auth-type: basic", "auth-url: http://a", "whitelist-source-range: 10.0.0.0/8"])
def test_an_ingress_that_keeps_clients_away_is_refused(name: str) -> None:
    text = ingress(path(), NGINX + name)
    with pytest.raises(Invalid, match="would be open to all") as caught:
        imported(text)
    assert "--unisolated" in (caught.value.hint or "")
    files = [Source("a.yaml", text)]
    found = convert(KubernetesImporter(), files, Options(unisolated=True))
    assert any(NGINX in note.text and note.fate == "dropped" for note in found.report.notes)


def test_other_annotations_are_reported_by_name() -> None:
    text = ingress(path(), f"{NGINX}enable-cors: 'true'", "kubernetes.io/ingress.class: nginx")
    notes = {note.text for note in imported(deployment(), service(), text).report.notes}
    assert f"{NGINX}enable-cors: it has no counterpart" in notes
    assert "kubernetes.io/ingress.class: the gateways of the cluster serve all routes" in notes


@pytest.mark.parametrize(
    ("where", "says"),
    [(path("no-slash"), "no route can be made of it"), (path("/", "Magic"), "is none of Prefix")],
)
def test_an_ingress_that_makes_no_route_is_refused_with_its_line(where: str, says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        imported(ingress(where))
    assert isinstance(caught.value.facts["line"], int)


# The Gateway API.

GATEWAY = """\
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front}
spec:
  gatewayClassName: any
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS, hostname: "*.example", tls: {certificateRefs: [{name: cert}]}}
  - {name: sql, port: 5432, protocol: TCP}
---
"""


def http_route(rule: str, section: str = "https", kind: str = "HTTPRoute") -> str:
    return (
        f"{GATEWAY}apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{name: shop}}\nspec:\n"
        f"  parentRefs: [{{name: front, sectionName: {section}}}]\n  hostnames: [shop.example]\n"
        f"  rules:\n{indented(rule, 2)}"
    )


BACKEND = "backendRefs: [{name: web, port: 80}]"


@pytest.mark.req("S0-32", "S2-30")
@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (f"- {{{BACKEND}}}", {"path": None}),
        (f"- {{matches: [{{path: {{type: PathPrefix, value: /api/}}}}], {BACKEND}}}", {"path": "/api"}),
        (
            f"- {{matches: [{{path: {{type: Exact, value: /a}}, method: GET}}], {BACKEND}}}",
            {"path": "/a", "path_match": "exact", "methods": ["GET"]},
        ),
        (
            f"- {{matches: [{{headers: [{{name: x-new, value: 'yes'}}]}}], {BACKEND}}}",
            {"path": "/", "headers": {"x-new": "yes"}},
        ),
        (
            f"- {{timeouts: {{request: 10s}}, {BACKEND}, matches: [{{path: {{value: /a}}}}],"
            " filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /b}}}]}",
            {"path": "/a", "timeouts": {"response": "10s"}, "rewrite": {"path": "/b"}},
        ),
    ],
)
def test_an_http_route_is_a_route_for_each_match(rule: str, wanted: dict[str, Any]) -> None:
    found = only_route(http_route(rule))
    assert found == {key: value for key, value in wanted.items() if value is not None}


def test_weights_and_redirects_of_an_http_route() -> None:
    weights = "- {backendRefs: [{name: web, port: 80, weight: 95}, {name: next, port: 80, weight: 5}]}"
    (found,) = routes(imported(deployment(), service(), http_route(weights)))
    assert found["to"] == [WEB | {"weight": 95}, {"service": "next", "port": 80, "weight": 5}]
    assert found["tls"] == "cert"
    redirect = "- filters: [{type: RequestRedirect, requestRedirect: {scheme: https, statusCode: 301}}]"
    (found,) = routes(imported(http_route(redirect, "http")))
    assert (found["redirect"], found["tls"]) == ({"scheme": "https", "code": 301}, "off")


def test_a_match_with_a_condition_that_no_route_has_is_left_out_and_not_widened() -> None:
    rule = f"- {{matches: [{{queryParams: [{{name: a, value: b}}]}}, {{path: {{value: /kept}}}}], {BACKEND}}}"
    assert [each["path"] for each in routes(imported(deployment(), service(), http_route(rule)))] == ["/kept"]


def test_routes_for_grpc_and_tcp() -> None:
    rule = f"- {{matches: [{{method: {{service: shop.Cart, method: Add}}}}], {BACKEND}}}"
    found = only_route(http_route(rule, kind="GRPCRoute"))
    assert found == {"path": "/shop.Cart/Add", "path_match": "exact", "upstream": "h2"}
    tcp = (
        f"{GATEWAY}apiVersion: gateway.networking.k8s.io/v1alpha2\nkind: TCPRoute\nmetadata: {{name: db}}\n"
        "spec: {parentRefs: [{name: front, sectionName: sql}], rules: [{backendRefs: [{name: web, port: 80}]}]}\n"
    )
    assert routes(imported(deployment(), service(), tcp)) == [
        {"name": "db", "protocol": "tcp", "port": 5432, "to": [WEB]}
    ]


def test_kinds_of_the_gateway_api_without_a_counterpart_are_reported() -> None:
    text = "apiVersion: gateway.networking.k8s.io/v1alpha2\nkind: TLSRoute\nmetadata: {name: a}\nspec: {}\n"
    found = imported(text)
    assert found.made == ()
    assert "does not pass TLS through" in found.report.notes[0].text
