"""Routes of real processes behind a real HAProxy that the cluster places: nothing is lost in roll-outs and crashes."""

from __future__ import annotations

import http.client
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, eventually
from tests.e2e.gateway import PlacedGateway, greeter


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        cluster.start_server()
        cluster.start_agent("n1")
        cluster.wait_nodes("n1")
        yield cluster


class Load(threading.Thread):
    """Sends requests to the gateway until it is stopped."""

    def __init__(self, gateway: PlacedGateway) -> None:
        super().__init__(daemon=True)
        self._gateway, self._stopped = gateway, threading.Event()
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._stopped.wait(0.005):
            try:
                status, text = self._gateway.ask()
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
            else:
                if status == 200:
                    self.answers[text] += 1
                else:
                    self.failures.append(f"{status} {text}")

    def stop(self) -> None:
        self._stopped.set()
        self.join(60)


@pytest.mark.req("S2-33")
def test_roll_outs_behind_a_gateway_lose_no_request(cluster: Cluster) -> None:
    gateway = PlacedGateway(cluster, "n1")
    cluster.apply(greeter(2))
    gateway.answers()
    load = Load(gateway)
    load.start()
    for step in range(1, 4):
        before = {each["meta"]["uid"] for each in cluster.instances("greeter")}
        cluster.apply(greeter(2, step))

        def replaced(old: set[str] = before) -> bool:
            found = cluster.instances("greeter")
            return len(found) == 2 and all(
                each["meta"]["uid"] not in old and each["status"].get("ready") for each in found
            )

        eventually("every instance is replaced", replaced, patience=120)
    load.stop()
    assert load.failures == []
    assert sum(load.answers.values()) > 50
    (route,) = cluster.items("routes")
    assert {name: each["ok"] for name, each in route["status"]["conditions"].items()} == {
        "Accepted": True,
        "Resolved": True,
    }


@pytest.mark.req("S2-33")
def test_a_gateway_serves_the_last_state_while_its_programs_and_the_control_plane_are_down(cluster: Cluster) -> None:
    gateway = PlacedGateway(cluster, "n1")
    cluster.apply(greeter(1))
    gateway.answers()
    state = str(cluster.directory / "gateway")
    cluster.servers[0].kill()
    _kill(state, "run")
    assert gateway.ask() == (200, "hello from greeter-0\n")
    _kill(state, "haproxy")
    gateway.answers()
    cluster.servers[0].start()
    cluster.wait_ready()
    cluster.apply(greeter(1).replace("shop.test", "new.test"))
    gateway.answers("new.test")
    assert gateway.ask()[0] == 404


def _kill(state: str, what: str) -> None:
    """Kill the processes of one task of the gateway in this folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        own = any(word.startswith(state) for word in words)
        if own and (what in words or words[0].endswith(what)):
            found.append(int(folder.name))
    assert found, f"no process {what}"
    for pid in found:
        os.kill(pid, signal.SIGKILL)
