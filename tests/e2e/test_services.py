"""A service of real processes behind a real relay: roll-outs lose no request, the data path outlives the agent."""

from __future__ import annotations

import asyncio
import http.client
import http.server
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mandor.network.addresses import LOOPBACK
from mandor.network.relay.balancer import RelayBalancer
from tests.components.ports import free_port
from tests.e2e.cluster import Cluster, eventually

OUTSIDE = "127.77.0.1"
"""Loopback address that stands for a machine outside of the cluster: the node may send traffic there."""
NONE = "gets no traffic: "
EXAMPLE = Path(__file__).parents[2] / "examples" / "ports.yaml"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose only node balances services with a relay."""
    with Cluster(tmp_path) as cluster:
        try:
            cluster.start_server()
            options = ("--egress-allow", OUTSIDE)
            cluster.start_agent("n1", options=options, environ={"MANDOR_BALANCER": "relay"})
            cluster.wait_nodes("n1")
            yield cluster
        finally:
            cluster.agents["n1"].kill()
            relay = RelayBalancer(cluster.home("n1") / "network" / "relay")
            with ThreadPoolExecutor(1) as aside:
                aside.submit(asyncio.run, relay.remove()).result()


class Shop:
    """The service `shop` of the workload greeter."""

    def __init__(self, cluster: Cluster, replicas: int) -> None:
        self._cluster, self.port = cluster, free_port()
        text = EXAMPLE.read_text().replace("replicas: 3", f"replicas: {replicas}")
        self._text = f"{text}\nservices: [{{name: shop, port: {{http: {self.port}}}}}]\nstop: {{grace: 5s}}\n"
        cluster.apply(self._text)
        cluster.wait_running("greeter", replicas)
        (service,) = eventually("the service has a number", self._numbered)
        self.address = LOOPBACK.addresses(service["status"]["number"])[0]
        eventually("the service answers", lambda: self.ask().startswith("hello from"))

    def _numbered(self) -> list[Any]:
        return [each for each in self._cluster.items("services") if each.get("status", {}).get("number")]

    def change(self, step: int) -> None:
        """Roll out a new release."""
        self._cluster.apply(f"{self._text}env: {{STEP: '{step}'}}\nupdate: {{min_healthy: 500ms}}\n")

    def ask(self) -> str:
        connection = http.client.HTTPConnection(self.address, self.port, timeout=30)
        try:
            connection.request("GET", "/")
            return connection.getresponse().read().decode()
        finally:
            connection.close()


class Load(threading.Thread):
    """Asks the service again and again until it is stopped."""

    def __init__(self, shop: Shop) -> None:
        super().__init__(daemon=True)
        self._shop, self._stopped = shop, threading.Event()
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.answers[self._shop.ask()] += 1
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))

    def stop(self) -> None:
        self._stopped.set()
        self.join(60)


@pytest.mark.req("S2-28", "S2-29")
def test_a_service_spreads_requests_and_loses_none_in_roll_outs(cluster: Cluster) -> None:
    shop = Shop(cluster, 2)
    eventually("both instances answer", lambda: len({shop.ask() for _ in range(4)}) == 2)
    load = Load(shop)
    load.start()
    for step in range(3):
        before = {each["meta"]["uid"] for each in cluster.instances("greeter")}
        shop.change(step)

        def replaced(old: set[str] = before) -> bool:
            found = cluster.instances("greeter")
            return len(found) == 2 and all(
                each["meta"]["uid"] not in old and each["status"].get("ready") for each in found
            )

        eventually("every instance is replaced", replaced, patience=120)
    load.stop()
    assert load.failures == []
    assert sum(load.answers.values()) > 50
    shown = cluster.mandor("describe", "service", "shop")
    assert "instances: 2 of 2 get traffic" in shown.stdout, shown.stdout + shown.stderr
    assert f"{shop.address}:{shop.port}" in shown.stdout
    way = cluster.mandor("explain", "traffic", "greeter-0", "shop")
    assert (way.returncode, "reaches service default/shop port http" in way.stdout) == (0, True), way.stdout


@pytest.mark.req("S2-46")
def test_a_service_without_a_ready_instance_refuses_connections(cluster: Cluster) -> None:
    shop = Shop(cluster, 1)
    cluster.call("PATCH", "/v1/workloads/greeter", {"spec": {"groups": {"main": {"replicas": 0}}}})
    eventually("the instance is gone", lambda: not cluster.instances("greeter"))

    def refused() -> bool:
        try:
            shop.ask()
        except ConnectionRefusedError:
            return True
        return False

    eventually("connections are refused", refused)
    shown = cluster.mandor("describe", "service", "shop")
    assert shop.address not in shown.stdout or "ENDPOINT " not in shown.stdout, shown.stdout


def test_a_service_answers_while_the_agent_is_down(cluster: Cluster) -> None:
    shop = Shop(cluster, 1)
    cluster.agents["n1"].kill()
    assert shop.ask() == "hello from greeter-0\n"
    cluster.agents["n1"].start()
    cluster.wait_nodes("n1")
    assert shop.ask() == "hello from greeter-0\n"
    cluster.call("DELETE", "/v1/workloads/greeter")
    eventually("the service is deleted with its workload", lambda: not cluster.items("services"))


class Outside:
    """An HTTP server that is not part of the cluster."""

    def __init__(self, address: str, port: int) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(f"{address}\n".encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer((address, port), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def external(cluster: Cluster, name: str, port: int, *addresses: str, more: str = "") -> str:
    """Create a service for these addresses, and return its virtual address."""
    listed = ", ".join(f'"{each}"' for each in addresses)
    cluster.apply(f"{{kind: service, name: {name}, port: {{http: {port}}}, external: [{listed}]{more}}}")

    def number() -> int:
        found = [each for each in cluster.items("services") if each["meta"]["name"] == name]
        return int(found[0]["status"].get("number", 0)) if found else 0

    return LOOPBACK.addresses(eventually("the service has a number", number))[0]


def ask(address: str, port: int) -> str:
    """Return the answer, or the kind of the failure."""
    connection = http.client.HTTPConnection(address, port, timeout=30)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode().strip()
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


@pytest.mark.req("S2-28", "S2-46")
def test_an_external_address_gets_traffic_only_while_its_check_passes(cluster: Cluster) -> None:
    Shop(cluster, 1)  # A node balances the services of namespaces that have an instance on it.
    server, port = Outside(OUTSIDE, 0), free_port()
    check = f"{OUTSIDE}:{server.port}"
    health = ", health: {http: /, every: 1s, timeout: 1s, failures: 2}"
    virtual = external(cluster, "legacy", port, check, f"{OUTSIDE}:{free_port()}", more=health)
    try:
        eventually("only the server that answers gets traffic", lambda: all_equal(virtual, port, OUTSIDE))
        eventually(
            "the failure is shown", lambda: cluster.mandor("describe", "service", "legacy").stdout.count(NONE) == 1
        )
        server.close()
        eventually("connections are refused", lambda: all_equal(virtual, port, "ConnectionRefusedError"))
        server = Outside(OUTSIDE, server.port)
        eventually("the server gets traffic again", lambda: all_equal(virtual, port, OUTSIDE))
    finally:
        server.close()


def all_equal(virtual: str, port: int, answer: str) -> bool:
    return {ask(virtual, port) for _ in range(4)} == {answer}


def test_a_service_leads_neither_to_loopback_and_link_local_addresses_of_a_node_nor_to_another_service(
    cluster: Cluster,
) -> None:
    shop = Shop(cluster, 1)
    secret, port = Outside("127.0.0.1", 0), free_port()
    try:
        bad = [f"127.0.0.1:{secret.port}", f"[::ffff:127.0.0.1]:{secret.port}", f"{shop.address}:{shop.port}"]
        bad.append("169.254.169.254:80")
        virtual = external(cluster, "inside", port, *bad)
        server = Outside(OUTSIDE, 0)
        allowed = external(cluster, "legacy", port, f"{OUTSIDE}:{server.port}")
        try:  # The data path has the service `inside` as soon as it has the one that was created after it.
            eventually("the allowed address answers", lambda: ask(allowed, port) == OUTSIDE)
            assert {ask(virtual, port) for _ in range(8)} == {"ConnectionRefusedError"}
        finally:
            server.close()
    finally:
        secret.close()
    log = cluster.agents["n1"].text()
    assert all(f"address {each} gets no traffic" in log for each in bad), log
