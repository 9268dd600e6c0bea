"""Networks over real nodes: two dockerds and process engines, each with an agent in a network namespace of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from socket import SHUT_WR, create_connection, socket
from typing import Any

import pytest

from mandor.network.addresses import ROUTED
from scripts.components import environment, find
from tests.components.docker import Docker
from tests.components.image import NAME
from tests.e2e.cluster import Cluster, Program, eventually

pytestmark = [pytest.mark.real("docker", "iproute2", "nftables"), pytest.mark.slow]

NETWORK = "{kind: network, name: backend, subnet: 10.92.0.0/16, subnet6: 'fd92::/48'}"
WEB = f"""
name: {{name}}
image: {NAME}
network: backend
engine: docker
placement: {{{{where: ["machine == {{node}}"]}}}}
command: [sh, -c, 'mkdir -p /tmp/www; hostname > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www']
ports: {{{{http: 8080}}}}
restart: {{{{delay: 200ms}}}}
stop: {{{{grace: 0s}}}}
"""
PROCESS = """
name: plain
network: backend
engine: process
placement: {where: ["machine == n2"]}
command: [%s, -m, http.server, '8081', --bind, '::', --directory, /usr/share]
ports: {http: 8081}
stop: {grace: 0s}
"""


PIPES: list[socket] = []
"""Connections of agents to the server."""


class Node:
    """One machine: a dockerd and an agent in one network namespace, and a way for the agent to the server."""

    def __init__(self, name: str, address: str, docker: Docker) -> None:
        self.name, self.address, self.docker = name, address, docker
        self.listener = docker.enclosure.listen("127.0.0.1")

    def start_agent(self, cluster: Cluster) -> Program:
        server = int(cluster.urls[0].rpartition(":")[2])
        threading.Thread(target=_forward, args=(self.listener, server), daemon=True).start()
        home = cluster.home(self.name)
        home.mkdir(parents=True, exist_ok=True)
        agent = Program(
            f"agent {self.name}",
            self.docker.enclosure.command(
                [
                    *(sys.executable, "-m", "mandor.roots.agent", "--data", home, "--name", self.name),
                    *("--server", f"http://127.0.0.1:{self.listener.getsockname()[1]}"),
                    *("--join-token-file", cluster.directory / "server0" / "join.token"),
                    *("--engine", "docker", "--engine", "process"),
                ]
            ),
            home / "log",
            {
                "MANDOR_HEARTBEAT": "500ms",
                "MANDOR_OVERLAY": "kernel",
                "MANDOR_BALANCER": "nftables",
                "MANDOR_LABEL": f"machine={self.name}",
                "MANDOR_ADDRESS": self.address,
                **environment("docker"),  # with the iptables that its dockerd uses
                "PATH": f"{os.environ['PATH']}:{environment('docker')['PATH']}",
                "DOCKER_HOST": f"unix://{self.docker.socket}",
                "MANDOR_PRESSURE": "disk=off,inodes=off,memory=off",
            },
        )
        cluster.agents[self.name] = agent
        agent.start()
        return agent

    def run(self, *words: str) -> str:
        return self.docker.enclosure.run(words)

    def ask(self, url: str) -> str:
        """Fetch a page from inside the only container of the node; empty while nothing answers."""
        running = self.docker.cli("ps", "--quiet").split()
        if len(running) != 1:
            return ""
        script = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())"
        inside = ["nsenter", "--net", f"--target={self.docker.inspect(running[0])['State']['Pid']}", "--"]
        done = subprocess.run([*inside, sys.executable, "-c", script, url], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def devices(self) -> list[str]:
        lines = self.run("ip", "-brief", "link").splitlines()
        return [each.split()[0] for each in lines if each.startswith(("mdn", "mdx"))]


def _forward(listener: socket, port: int) -> None:
    """Connect each connection inside a node to a port of the test's own machine."""
    while True:
        with suppress(OSError):
            accepted, _ = listener.accept()
            other = create_connection(("127.0.0.1", port))
            PIPES.extend((accepted, other))
            for source, target in ((accepted, other), (other, accepted)):
                threading.Thread(target=_copy, args=(source, target), daemon=True).start()
            continue
        return


def _copy(source: socket, target: socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(SHUT_WR)


@pytest.fixture
def nodes(new_docker: Callable[..., Docker]) -> Iterator[list[Node]]:
    """Two machines on one link."""
    dockers = [new_docker(), new_docker()]
    ip = str(find("iproute2"))
    first, second = (each.enclosure for each in dockers)
    peer = second.command(["true"])[3].removeprefix("--target=")
    first.run([ip, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", peer])
    for number, each in enumerate((first, second), 1):
        each.run([ip, "address", "add", f"192.168.77.{number}/24", "dev", "eth0"])
        each.run([ip, "link", "set", "eth0", "up"])
    made = [Node(f"n{number}", f"192.168.77.{number}", each) for number, each in enumerate(dockers, 1)]
    yield made
    for connection in (*(node.listener for node in made), *PIPES):
        connection.close()
    PIPES.clear()


@pytest.fixture
def cluster(nodes: list[Node], tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as running:
        running.start_server()
        running.apply(NETWORK)
        for each in nodes:
            each.start_agent(running)
        running.wait_nodes("n1", "n2")
        yield running


def attached(cluster: Cluster, workload: str) -> dict[str, Any]:
    def so() -> Any:
        return [each for each in cluster.instances(workload, phase="Running") if each["status"].get("network")]

    (found,) = eventually(f"{workload} runs in the network", so)
    status: dict[str, Any] = found["status"]
    return status


def test_containers_and_processes_reach_each_other_across_nodes_at_addresses_of_their_own(
    cluster: Cluster, nodes: list[Node]
) -> None:
    cluster.apply(WEB.format(name="one", node="n1") + "---\n" + WEB.format(name="two", node="n2"))
    cluster.apply(PROCESS % sys.executable)
    one, two, plain = (attached(cluster, each) for each in ("one", "two", "plain"))
    assert len({one["address"], two["address"], plain["address"]}) == 3
    assert all(each["address6"].startswith("fd92:") for each in (one, two, plain))
    for client, status, port, page in (
        (nodes[0], two, 8080, "two-0"),
        (nodes[1], one, 8080, "one-0"),
        (nodes[0], plain, 8081, "Directory listing"),
    ):
        for address in (status["address"], f"[{status['address6']}]"):
            url = f"http://{address}:{port}/"
            assert page in eventually(f"{client.name} reaches {url}", partial(client.ask, url))
    for each in nodes:
        assert each.docker.fetch(one["address"], 8080) == "one-0", "a node reaches all addresses itself"

    # A service leads to addresses in the network: no port is published.
    cluster.apply("{kind: service, name: shop, to: [{workload: two}], port: {http: {port: 80, target: 8080}}}")
    answer = eventually("the service answers", lambda: nodes[0].ask(f"http://{virtual(cluster, 'shop')}/"))
    assert answer == "two-0"

    # The data path outlives the agents, and an instance that restarts keeps its address.
    for each in nodes:
        cluster.agents[each.name].kill()
    assert nodes[0].docker.fetch(two["address"], 8080) == "two-0"
    nodes[1].docker.end_all()
    for each in nodes:
        cluster.agents[each.name].start()
    eventually("two-0 is back", lambda: nodes[0].docker.fetch(two["address"], 8080) == "two-0")
    assert attached(cluster, "two")["address"] == two["address"]

    # A network in use stays; without users it goes, with everything on the nodes.
    refused = cluster.mandor("delete", "network", "backend")
    assert refused.returncode
    assert "3 workloads use the network" in refused.stderr
    for name in ("one", "two", "plain"):
        cluster.mandor("delete", "workload", name)
    eventually("all instances are gone", lambda: not cluster.instances())
    assert cluster.mandor("delete", "network", "backend").returncode == 0
    eventually("the devices are gone", lambda: not any(each.devices() for each in nodes))


def virtual(cluster: Cluster, name: str) -> str:
    numbers = [each["status"].get("number", 0) for each in cluster.items("services") if each["meta"]["name"] == name]
    return ROUTED.addresses(numbers[0])[0] if numbers and numbers[0] else "127.0.0.1"
