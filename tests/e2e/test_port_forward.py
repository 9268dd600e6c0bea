"""`mandor port-forward` to real processes, through a real server and agent."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.components.ports import free_port
from tests.e2e.cluster import Cluster, eventually
from tests.e2e.test_services import EXAMPLE, ask


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        cluster.start_server()
        cluster.start_agent("n1")
        cluster.wait_nodes("n1")
        yield cluster


@contextmanager
def port_forward(cluster: Cluster, log: Path, *words: str) -> Iterator[int]:
    """Run the command; yield its local port."""
    command = [sys.executable, "-m", "mandor.cli.main", "--server", cluster.urls[0], "port-forward", *words]
    with log.open("w") as output:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=os.environ)
    try:

        def local() -> int:
            assert program.poll() is None, log.read_text()
            found = re.search(r"127\.0\.0\.1:(\d+) -> ", log.read_text())
            return int(found[1]) if found else 0

        yield eventually("the command listens", local)
        program.send_signal(signal.SIGINT)
        assert program.wait(30) == 130
    finally:
        program.kill()
        program.wait()


def test_instances_workloads_and_services_are_reached_through_a_local_port(cluster: Cluster, tmp_path: Path) -> None:
    port = free_port()
    cluster.apply(f"{EXAMPLE.read_text()}\nservices: [{{name: shop, port: {{http: {port}}}}}]\n")
    cluster.wait_running("greeter", 3)
    eventually("all are ready", lambda: all(each["status"].get("ready") for each in cluster.instances("greeter")))
    log = tmp_path / "forward.log"
    with port_forward(cluster, log, "greeter-1", ":http") as local:
        assert {ask("127.0.0.1", local) for _ in range(3)} == {"hello from greeter-1"}
    for target, remote in (("service/shop", str(port)), ("greeter", "http")):
        with port_forward(cluster, log, target, f":{remote}") as local:
            eventually("every instance answers", partial(_all_answer, local))


def _all_answer(local: int) -> bool:
    return len({ask("127.0.0.1", local) for _ in range(9)}) == 3


def test_ports_of_other_programs_on_the_node_are_not_reached(cluster: Cluster, tmp_path: Path) -> None:
    cluster.apply(EXAMPLE.read_text().replace("replicas: 3", "replicas: 1"))
    cluster.wait_running("greeter", 1)
    api = urlsplit(cluster.urls[0]).port  # It listens on the loopback address of the node.
    log = tmp_path / "forward.log"
    with port_forward(cluster, log, "greeter-0", f":{api}") as local:
        assert ask("127.0.0.1", local) in {"ConnectionResetError", "RemoteDisconnected"}
        eventually("the refusal is shown", lambda: f"greeter-0 has no port {api}" in log.read_text())


def test_a_port_that_does_not_exist_and_a_busy_local_port_are_explained(cluster: Cluster) -> None:
    port = free_port()
    cluster.apply(f"{EXAMPLE.read_text()}\nservices: [{{name: shop, port: {{http: {port}}}}}]\n")
    cluster.wait_running("greeter", 3)
    unknown = cluster.mandor("port-forward", "service/shop", ":smtp")
    assert (unknown.returncode, f"http ({port})" in unknown.stderr) == (1, True), unknown.stderr
    busy = urlsplit(cluster.urls[0]).port
    taken = cluster.mandor("port-forward", "greeter-0", f"{busy}:http")
    assert (taken.returncode, f"cannot listen on 127.0.0.1 port {busy}" in taken.stderr) == (1, True), taken.stderr
