"""Certificates of routes in a real control plane that is killed, with a real certificate authority."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.components import find
from tests.components.pebble import Pebble, running, serving
from tests.e2e.cluster import Cluster, eventually
from tests.e2e.gateway import PlacedGateway, greeter

pytestmark = pytest.mark.real("pebble")

ROUTE = """\
kind: route
name: {name}
host: {host}
to: [{{service: shop}}]
"""


@pytest.fixture
def pebble(tmp_path: Path) -> Iterator[Pebble]:
    binary = find("pebble")
    assert binary is not None
    with running(binary, tmp_path / "pebble") as pebble:
        yield pebble


@pytest.fixture
def cluster(tmp_path: Path, pebble: Pebble) -> Iterator[Cluster]:
    settings = {
        "MANDOR_ACME_DIRECTORY": pebble.directory,
        "MANDOR_ACME_CA": str(pebble.ca),
        "MANDOR_ACME_EMAIL": "ops@example.com",
        "MANDOR_ACME_AGREE": "true",
    }
    with Cluster(tmp_path, settings=settings) as cluster:
        cluster.start_server()
        yield cluster


def route_of(cluster: Cluster, name: str) -> Any:
    status, found = cluster.call("GET", f"/v1/routes/{name}")
    assert status == 200, found
    return found


def challenges_of(cluster: Cluster, name: str) -> Any:
    return route_of(cluster, name).get("status", {}).get("challenges")


def certificate_of(cluster: Cluster, name: str) -> Any:
    return route_of(cluster, name).get("status", {}).get("certificate") or {}


def answer(cluster: Cluster, host: str, token: str) -> str | None:
    """Return what a gateway serves, from the routes of the API."""
    found = [each for each in cluster.items("routes") if each["spec"].get("host") == host]
    return next((text for each in found if (text := each["status"].get("challenges", {}).get(token))), None)


def test_a_control_plane_that_is_killed_during_an_order_completes_the_same_order(
    cluster: Cluster, pebble: Pebble
) -> None:
    cluster.apply(ROUTE.format(name="shop", host="shop.example.com"))
    first = eventually("the challenge is served", lambda: challenges_of(cluster, "shop"))
    cluster.servers[0].kill()
    cluster.servers[0].start()
    cluster.wait_ready()
    with serving(pebble.challenge_port, lambda host, token: answer(cluster, host, token)) as asked:
        found = eventually("the certificate is issued", lambda: certificate_of(cluster, "shop").get("secret"))
    assert found == "tls-shop.example.com"
    assert set(asked) == set(first)
    assert pebble.requests("Added order") == 1
    eventually("the challenge is removed", lambda: not challenges_of(cluster, "shop"))

    # Values of the certificate and of the account are shown to nobody.
    shown = json.dumps([cluster.items("secrets"), cluster.items("acme-accounts")])
    assert "tls.key" in shown
    assert "sealed" in shown
    assert "PRIVATE KEY" not in shown
    assert '"v1.' not in shown
    events = eventually(
        "the event is recorded",
        lambda: [each for each in cluster.items("events") if each["spec"]["reason"] == "CertificateIssued"],
    )
    assert events[0]["spec"]["about"] == "route default/shop"
    described = cluster.mandor("get", "routes", "-o", "wide").stdout
    assert "secret tls-shop.example.com, until " in described


def test_doctor_reports_a_certificate_that_cannot_be_issued(cluster: Cluster, pebble: Pebble) -> None:
    pebble.stop()
    cluster.apply(ROUTE.format(name="shop", host="shop.example.com"))
    eventually("the failure is shown", lambda: certificate_of(cluster, "shop").get("message"))
    told = cluster.mandor("doctor").stdout
    assert "certificate of shop.example.com: there is none: the certificate authority cannot be used" in told


def test_a_user_cannot_claim_that_the_control_plane_wrote_a_secret(cluster: Cluster) -> None:
    """Otherwise an order would overwrite it."""
    body = {
        "kind": "secret",
        "meta": {"name": "tls-mine.example.com", "namespace": "default"},
        "spec": {"data": {"tls.crt": "own", "tls.key": "own"}},
        "status": {"issued": {"host": "mine.example.com"}},
    }
    status, answer = cluster.call("PUT", "/v1/secrets/tls-mine.example.com", body)
    assert status in {200, 201}, answer
    assert "issued" not in answer.get("status", {})
    cluster.apply(ROUTE.format(name="mine", host="mine.example.com"))
    message = eventually("the conflict is shown", lambda: certificate_of(cluster, "mine").get("message"))
    assert "a user wrote the secret tls-mine.example.com" in message


@pytest.mark.real("haproxy")
@pytest.mark.req("S2-33")
def test_an_exposed_service_gets_a_certificate_and_answers_over_https(cluster: Cluster, pebble: Pebble) -> None:
    """The authority reads the challenge through the gateway, which loads the certificate without a restart."""
    cluster.start_agent("n1")
    cluster.wait_nodes("n1")
    gateway = PlacedGateway(cluster, "n1", http=pebble.challenge_port)
    cluster.apply(greeter(1, expose="{host: shop.example.com}"))
    eventually("the route exists", lambda: cluster.items("routes"))
    eventually("the certificate is issued", lambda: certificate_of(cluster, "shop").get("secret"))
    trust = ssl.create_default_context(cadata=pebble.root())

    def answer() -> str:
        with (
            socket.create_connection(("127.0.0.1", gateway.https), timeout=30) as line,
            trust.wrap_socket(line, server_hostname="shop.example.com") as secure,
        ):
            secure.sendall(b"GET / HTTP/1.1\r\nHost: shop.example.com\r\nConnection: close\r\n\r\n")
            return secure.makefile().read()

    assert "hello from greeter-0" in eventually("the service answers over HTTPS", answer)
    assert gateway.ask(host="shop.example.com")[0] in {301, 302, 308}
