"""Containers on a real dockerd: addresses, traffic with machines outside the node, logs at a syslog server."""

from __future__ import annotations

import http.server
import os
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scripts.components import environment, find
from tests.components.docker import Docker
from tests.components.image import NAME
from tests.components.rsyslog import Rsyslog
from tests.e2e.cluster import Cluster, eventually
from tests.faults.network import Machine, new_namespace

pytestmark = [pytest.mark.real("docker"), pytest.mark.slow]

NODE, OUTSIDE = "10.98.0.1", "10.98.0.2"
WEB = f"""
name: web
replicas: {{replicas}}
image: {NAME}
command: [sh, -c, 'mkdir -p /tmp/www; hostname > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www']
ports: {{{{http: {{{{port: 8080, host: auto}}}}}}}}
restart: {{{{delay: 200ms}}}}
stop: {{{{grace: 0s}}}}
"""
CALLER = f"""
name: caller
type: batch
image: {NAME}
command: [sh, -c, 'until wget -qO- http://{OUTSIDE}:{{port}}/from-a-container; do sleep 0.2; done']
stop: {{{{grace: 0s}}}}
"""
PRINTER = f"""
name: printer
image: {NAME}
command: [sh, -c, 'while :; do echo "to stdout, \\"quoted\\""; echo to stderr >&2; sleep 0.2; done']
stop: {{grace: 0s}}
"""
SINK = """
kind: log-sink
name: central
url: {url}
sources: [instances, agent]
"""


@pytest.fixture
def own_docker(new_docker: Callable[..., Docker]) -> Docker:
    return new_docker()


@pytest.fixture
def cluster(own_docker: Docker, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as running:
        running.start_server()
        environ = {"DOCKER_HOST": f"unix://{own_docker.socket}", "MANDOR_EGRESS_ALLOW": "127.0.0.0/8"}
        running.start_agent("n1", engines=("docker",), environ=environ)
        running.wait_nodes("n1")
        yield running


@pytest.fixture
def outside(own_docker: Docker) -> Iterator[Machine]:
    """A machine beside the node of the daemon, connected by a network interface of each."""
    machine = Machine("outside", OUTSIDE, new_namespace())
    peer = f"/proc/{os.getpid()}/fd/{machine.descriptor}"
    for line in (
        f"link add outside type veth peer name eth0 netns {peer}",
        f"addr add {NODE}/24 dev outside",
        "link set outside up",
    ):
        own_docker.enclosure.run([str(find("iproute2")), *line.split()], environ=environment("iproute2"))
    machine.ip(f"addr add {OUTSIDE}/24 dev eth0", "link set lo up", "link set eth0 up")
    yield machine
    machine.close()


def fetch(machine: Machine, address: str, port: int) -> str:
    """Fetch the page at `/` from that machine; empty while nothing answers."""
    with machine.inside():
        try:
            with urllib.request.urlopen(f"http://{address}:{port}/", timeout=10) as answer:
                text: str = answer.read().decode()
                return text.strip()
        except OSError:
            return ""


@contextmanager
def web_server(machine: Machine) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """A web server on that machine; yields its port, and the callers' addresses with the paths that they asked for."""
    asked: list[tuple[str, str]] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.client_address[0], self.path))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello from outside\n")

        def log_message(self, *_: Any) -> None:
            pass

    with machine.inside():
        server = http.server.ThreadingHTTPServer((machine.address, 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.real("iproute2")
@pytest.mark.req("S2-7")
def test_containers_are_reached_from_another_machine_and_reach_it(cluster: Cluster, outside: Machine) -> None:
    cluster.apply(WEB.format(replicas=2))
    for each in cluster.wait_running("web", 2):
        name, port = each["meta"]["name"], each["spec"]["ports"]["http"]
        assert eventually(f"{name} answers a caller outside", partial(fetch, outside, NODE, port)) == name
    with web_server(outside) as (port, asked):
        cluster.apply(CALLER.format(port=port))
        eventually("the container has called", lambda: cluster.instances("caller", phase="Succeeded"))
        assert asked == [(NODE, "/from-a-container")], "the caller outside sees the address of the node"
        eventually("the answer is printed", lambda: "hello from outside" in cluster.mandor("logs", "caller-0").stdout)


@pytest.mark.req("S2-33")
def test_each_container_has_an_address_that_no_other_container_has(cluster: Cluster, own_docker: Docker) -> None:
    cluster.apply(WEB.format(replicas=4))

    def addresses() -> dict[str, str]:
        found = cluster.wait_running("web", 4)
        for each in found:
            name, page = each["meta"]["name"], partial(own_docker.enclosure.fetch, each["status"]["address"], 8080)
            assert eventually(f"{name} answers at its own address", page) == name
        return {each["meta"]["name"]: each["status"]["address"] for each in found}

    assert len(set(addresses().values())) == 4
    first = own_docker.cli("ps", "--quiet", "--filter", "label=io.mandor.uid").splitlines()[0]
    own_docker.cli("kill", first)
    eventually("it is restarted", lambda: sum(e["status"].get("restarts", 0) for e in cluster.instances("web")) == 1)
    assert len(set(addresses().values())) == 4


@pytest.mark.real("rsyslog")
@pytest.mark.req("S2-40")
def test_lines_of_a_container_and_of_its_node_arrive_at_a_syslog_server(cluster: Cluster, tmp_path: Path) -> None:
    with Rsyslog(tmp_path / "rsyslog") as receiver:
        cluster.apply(SINK.format(url=receiver.url))
        cluster.apply(PRINTER)
        cluster.wait_running("printer", 1)

        def of_the_container() -> set[tuple[str, ...]]:
            found = [each for each in receiver.messages if each.program == "printer"]
            return {(each.host, each.process, each.kind, each.text) for each in found}

        wanted = {
            ("n1", "printer-0", "stdout", 'to stdout, "quoted"'),
            ("n1", "printer-0", "stderr", "to stderr"),
        }
        eventually("the lines of the container arrive", lambda: of_the_container() >= wanted)
        assert of_the_container() == wanted
        (line, *_) = [each for each in receiver.messages if each.program == "printer"]
        assert 'workload="printer"' in line.data
        assert 'namespace="default"' in line.data

        # The lines of the agent arrive, and those of the container go on, while the server is away.
        def of_the_node() -> list[str]:
            found = [each for each in receiver.messages if (each.host, each.program) == ("n1", "mandor-agent")]
            return [each.text for each in found if "heartbeat failed" in each.text]

        cluster.servers[0].kill()
        eventually("lines of the agent arrive", of_the_node)
        before = len(receiver.messages)
        eventually("further lines of the container arrive", lambda: len(receiver.messages) > before + 4)
        cluster.servers[0].start()
        cluster.wait_ready()
