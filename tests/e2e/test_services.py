"""A service of real processes behind a real relay: roll-outs lose no request, the data path outlives the agent."""

from __future__ import annotations

import asyncio
import http.client
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

EXAMPLE = Path(__file__).parents[2] / "examples" / "ports.yaml"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose only node balances services with a relay."""
    with Cluster(tmp_path) as cluster:
        try:
            cluster.start_server()
            cluster.start_agent("n1", environ={"MANDOR_BALANCER": "relay"})
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


def test_a_service_answers_while_the_agent_is_down(cluster: Cluster) -> None:
    shop = Shop(cluster, 1)
    cluster.agents["n1"].kill()
    assert shop.ask() == "hello from greeter-0\n"
    cluster.agents["n1"].start()
    cluster.wait_nodes("n1")
    assert shop.ask() == "hello from greeter-0\n"
    cluster.call("DELETE", "/v1/workloads/greeter")
    eventually("the service is deleted with its workload", lambda: not cluster.items("services"))
