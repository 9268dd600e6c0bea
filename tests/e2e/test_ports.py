"""Ports that are chosen, with real processes and a stranger who holds one of them."""

from __future__ import annotations

import os
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.components.ports import free_base
from tests.e2e.cluster import Cluster, eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "ports.yaml"
COUNT = 4


def port_of(instance: Any) -> int:
    return int(instance["spec"]["ports"]["http"])


@pytest.mark.req("S2-7")
def test_each_server_has_a_port_of_its_own_and_none_that_a_stranger_holds(tmp_path: Path) -> None:
    first = free_base(range(COUNT))
    ports = range(first, first + COUNT)
    with Cluster(tmp_path) as cluster, socket.socket() as stranger:
        cluster.start_server()
        cluster.start_agent("n1", options=("--port-range", f"{ports[0]}-{ports[-1]}"))
        cluster.wait_nodes("n1")
        # Its first choice goes by its name: held by somebody else, it is found out, told, and another is taken.
        cluster.apply(EXAMPLE.read_text().replace("replicas: 3", "replicas: 1"))
        (one,) = cluster.wait_running("greeter", 1)
        wished = port_of(one)
        cluster.call("DELETE", "/v1/workloads/greeter")
        eventually("it is gone", lambda: not cluster.instances())
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", wished))
        stranger.listen()

        cluster.apply(EXAMPLE.read_text())
        found = cluster.wait_running("greeter", 3)
        assert {port_of(each) for each in found} == set(ports) - {wished}
        assert cluster.items("nodes")[0]["status"]["ports"]["taken"] == [wished]
        told = [event["spec"]["message"] for event in cluster.items("events") if event["spec"]["reason"] == "PortTaken"]
        (message,) = told
        assert message.startswith(f"tcp port {wished} of this node is in use by ")
        assert message.endswith(f"(process {os.getpid()}), a program outside Mandor")
        eventually("all are ready", lambda: all(each["status"].get("ready") for each in cluster.instances("greeter")))
        for each in found:
            with urllib.request.urlopen(f"http://127.0.0.1:{port_of(each)}/", timeout=20) as answer:
                assert answer.read().decode() == f"hello from {each['meta']['name']}\n"
