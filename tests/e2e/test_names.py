"""Containers and processes find services through the name server of their node, also while the agent is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dns.message
import dns.query
import dns.rcode
import psutil
import pytest

from mandor.network.dns.names import NameServerProcess
from tests.components.image import NAME
from tests.e2e.cluster import Cluster, eventually
from tests.faults.network import Machine, new_namespace

ADDRESS = "169.254.53.53"
WEB = """
name: web
{what}
command: [{sh}, -c, {serve!r}]
ports: {{http: {port}}}
services: [{{name: shop, port: {{http: {port}}}, aliases: [store]}}]
restart: {{delay: 200ms}}
stop: {{grace: 0s}}
"""
CALLER = """
name: caller
type: batch
{what}
command: [{sh}, -c, {call!r}]
stop: {{grace: 0s}}
"""
NAMES = (
    "shop",
    "shop.default",
    "shop.default.mandor",
    "shop.default.svc.cluster.local",
    "store",
    "web-0",
    "web-0.shop",
)
IN_CONTAINER = "mkdir -p /tmp/www; hostname > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"
CALL = "set -e; cat /etc/resolv.conf; for name in {names}; do wget -qO- http://$name:8080/; done; echo all found"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="an address on the loopback interface needs root"),
    pytest.mark.slow,
]


@contextmanager
def running(directory: Path, engine: str, environ: dict[str, str]) -> Iterator[Cluster]:
    """A cluster whose only node has a name server; it runs in the network of the calling thread."""
    with Cluster(directory) as cluster:
        cluster.start_server()
        environ |= {"MANDOR_DNS": "auto", "MANDOR_ADDRESS": "192.0.2.7"}
        cluster.start_agent("n1", engines=(engine,), environ=environ)
        cluster.wait_nodes("n1")
        try:
            yield cluster
        finally:
            cluster.agents["n1"].kill()
            with ThreadPoolExecutor(1) as aside:
                aside.submit(asyncio.run, server_of(cluster).remove()).result()


def server_of(cluster: Cluster) -> NameServerProcess:
    return NameServerProcess(cluster.home("n1") / "network" / "dns", [ADDRESS])


def ask(name: str, kind: str = "A") -> list[str]:
    """Return the addresses of a name; empty while nothing answers."""
    try:
        answer = dns.query.udp(dns.message.make_query(name, kind), ADDRESS, timeout=2)
    except (OSError, dns.exception.Timeout):
        return []
    return [item.to_text() for each in answer.answer for item in each]


def processes(cluster: Cluster) -> list[psutil.Process]:
    """Return the processes of the name server, the oldest first."""
    folder = str((cluster.home("n1") / "network" / "dns").resolve())
    found = [each for each in psutil.process_iter(["cmdline"]) if folder in (each.info["cmdline"] or ())]
    return sorted(found, key=lambda each: each.create_time())


def call(cluster: Cluster, text: str) -> str:
    """Run the caller and return what it printed."""
    cluster.apply(text)

    def done() -> list[Any]:
        return cluster.instances("caller", phase="Succeeded")

    try:
        eventually("the caller has found all names", done)
    except AssertionError:
        print(cluster.mandor("logs", "caller-0").stdout)
        raise
    return cluster.mandor("logs", "caller-0").stdout


@pytest.fixture(params=["docker", "podman", "cri"])
def containers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster with a real container engine, in the network of the engine's daemon."""
    variable, fixture = {
        "docker": ("DOCKER_HOST", "docker"),
        "podman": ("CONTAINER_HOST", "podman"),
        "cri": ("CONTAINER_RUNTIME_ENDPOINT", "containerd"),
    }[request.param]
    daemon = request.getfixturevalue(fixture)
    pid = daemon.enclosure._holder.pid
    machine = Machine(request.param, namespace=os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC))
    try:
        with (
            machine.inside(),
            running(tmp_path / "c", request.param, {variable: f"unix://{daemon.socket}"}) as cluster,
        ):
            yield cluster
    finally:
        machine.close()


@pytest.mark.real("docker", "podman", "containerd")
@pytest.mark.req("S2-30")
def test_containers_find_services_and_instances_by_every_name(containers: Cluster) -> None:
    what = f"image: {NAME}"
    containers.apply(WEB.format(what=what, sh="sh", serve=IN_CONTAINER, port=8080))
    containers.wait_running("web", 1)
    (found,) = eventually("the service has the address of the instance", lambda: ask("shop.default.mandor"))
    (web,) = containers.instances("web")
    assert found == web["status"]["address"]
    assert ask("web.default.mandor") == ask("main.web.default.mandor") == [found]
    printed = call(containers, CALLER.format(what=what, sh="sh", call=CALL.format(names=" ".join(NAMES))))
    assert f"nameserver {ADDRESS}" in printed
    assert "search default.mandor" in printed
    assert printed.count("web-0\n") == len(NAMES)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster with the process engine in a network of its own."""
    machine = Machine("alone", namespace=new_namespace())
    machine.ip("link set lo up")
    try:
        with machine.inside(), running(tmp_path / "c", "process", {}) as cluster:
            yield cluster
    finally:
        machine.close()


CONFINED = "engine: process\noptions: {process: {confine: true}}"
GETENT = "set -e; cat /etc/resolv.conf; for name in {names}; do getent ahostsv4 $name; done; echo all found"


@pytest.mark.real("iproute2")
@pytest.mark.req("S2-30")
def test_names_are_answered_while_the_agent_the_server_and_the_control_plane_are_killed(alone: Cluster) -> None:
    alone.apply(WEB.format(what="engine: process", sh="/bin/sh", serve="exec sleep 1000", port=8080))
    alone.wait_running("web", 1)
    found = eventually("the service has an address", lambda: ask("shop.default.mandor"))
    printed = call(alone, CALLER.format(what=CONFINED, sh="/bin/sh", call=GETENT.format(names="shop web-0")))
    assert f"nameserver {ADDRESS}" in printed
    assert printed.count(f"{found[0]} ") >= 2

    alone.agents["n1"].kill()
    alone.servers[0].kill()
    assert ask("shop.default.mandor") == found
    guardian, server = processes(alone)
    os.kill(server.pid, signal.SIGKILL)
    eventually("a new process answers", lambda: ask("shop.default.mandor") == found)
    os.kill(guardian.pid, signal.SIGKILL)
    for each in processes(alone):
        os.kill(each.pid, signal.SIGKILL)
    assert eventually("nothing answers", lambda: not ask("shop.default.mandor"))

    alone.servers[0].start()
    alone.wait_ready()
    alone.agents["n1"].start()
    eventually("the agent has started the name server again", lambda: ask("shop.default.mandor") == found)
    alone.call("DELETE", "/v1/workloads/web")
    eventually("the service is gone", lambda: not ask("shop.default.mandor"))
