"""`mandor dev` with host paths, plugins and a scheduler configuration, and the ports that it shares with workloads."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.components.docker import Docker
from tests.components.enclosure import Enclosure
from tests.components.image import NAME
from tests.components.ports import free_port
from tests.e2e.cluster import eventually
from tests.e2e.test_cli_dev import MANDOR, dev, mandor

PLUGIN = '''\
"""LastNode: only nodes whose name ends with -1."""

import numpy as np

from mandor.plugin import NODE_EVENTS, CycleState, FilterPlugin, Mask, PlacementRequest, Snapshot


class LastNode(FilterPlugin):
    name = "LastNode"
    retry_on = NODE_EVENTS

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        return np.array([each.meta.name.endswith("-1") for each in nodes.nodes])

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        return "not the last node"
'''
PROFILE = "profiles: [{plugins: {multiPoint: {enabled: [{name: LastNode}]}}}]\n"


def items(folder: Path, plural: str) -> list[Any]:
    found: list[Any] = json.loads(mandor(folder, "get", plural, "-o", "json").stdout)["items"]
    return found


def test_host_paths_plugins_and_a_scheduler_configuration_reach_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "last_node.py").write_text(PLUGIN)
    (tmp_path / "profile.yaml").write_text(PROFILE)
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "word").write_text("open")
    web = f"""
name: web
replicas: 3
command: [sh, -c, 'cp "$MANDOR_VOLUME_HERE/word" "$MANDOR_VOLUME_HERE/said"; sleep 1000']
volumes: {{here: {{type: host, path: {shared}}}}}
mounts: [{{volume: here, path: here}}]
stop: {{grace: 1s}}
"""
    options = ["--allow-host-path", str(shared), "--scheduler-config", "profile.yaml", "--plugins", "plugins"]
    try:
        with dev(tmp_path, "--nodes", "2", *options):
            eventually("both nodes are ready", lambda: mandor(tmp_path, "get", "nodes").stdout.count("Ready") == 2)
            applied = mandor(tmp_path, "apply", "-f", "-", "--wait", given=web)
            assert applied.returncode == 0, applied.stderr
            assert {each["spec"]["node"][-2:] for each in items(tmp_path, "instances")} == {"-1"}
            eventually("a task has used the host path", (shared / "said").exists)
    finally:
        mandor(tmp_path, "dev", "--stop")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--allow-host-path", "here"], "here cannot be allowed as a host path"),
        (["--scheduler-config", "nowhere.yaml"], "there is no scheduler configuration nowhere.yaml"),
        (["--plugins", "nowhere"], "there is no folder of plugins nowhere"),
    ],
)
def test_a_wrong_option_is_reported_before_anything_starts(tmp_path: Path, options: list[str], says: str) -> None:
    refused = mandor(tmp_path, "dev", *options)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"error: {says}")
    assert not (tmp_path / ".mandor" / "server.log").exists()


def test_the_event_about_the_port_of_the_api_names_the_program_and_the_option_that_changes_the_port(
    tmp_path: Path,
) -> None:
    try:
        with dev(tmp_path) as (_, said):
            port = said[0].split("//127.0.0.1:")[1].split()[0]
            assert any(f"the API has port {port}" in line and "--listen 127.0.0.1:PORT" in line for line in said)
            web = f"name: web\ncommand: [sleep, '1000']\nports: {{http: {{port: {port}, host: {port}}}}}\n"
            mandor(tmp_path, "apply", "-f", "-", given=web)
            wanted = f"tcp port {port} of this node is in use by the API server of Mandor"

            def messages() -> list[str]:
                return [each["spec"]["message"] for each in items(tmp_path, "events")]

            found = eventually("the event names it", lambda: [each for each in messages() if wanted in each])
            assert "--listen HOST:PORT" in found[0]
            assert "(process " in found[0]
    finally:
        mandor(tmp_path, "dev", "--stop")


def test_a_port_that_another_program_has_is_reported_with_the_name_of_the_program(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        refused = mandor(tmp_path, "dev", "--listen", f"127.0.0.1:{other.getsockname()[1]}")
    assert refused.returncode == 1
    assert f"(process {os.getpid()}) has the port" in refused.stderr
    assert "--listen HOST:PORT" in refused.stderr


SERVER = f"""
name: web
image: {NAME}
command: [sh, -c, "mkdir -p /tmp/www; echo hello > /tmp/www/index.html; exec httpd -f -p 8000 -h /tmp/www"]
ports: {{http: {{port: 8000, host: 8000}}}}
placement: {{where: ["node == FIRST"]}}
stop: {{grace: 1s}}
"""
CLIENT = f"""
name: client
image: {NAME}
command: [sh, -c, "while :; do sleep 1; done"]
placement: {{where: ["node == SECOND"]}}
stop: {{grace: 1s}}
"""


@pytest.mark.real("docker")
@pytest.mark.req("S2-6")
def test_the_name_of_a_published_port_on_another_node_of_this_machine_leads_to_it_from_a_container(
    new_docker: Callable[..., Docker], tmp_path: Path
) -> None:
    docker = new_docker()
    listen = f"127.0.0.1:{free_port()}"
    environ = {**os.environ, "DOCKER_HOST": f"unix://{docker.socket}", "MANDOR_SERVER": f"http://{listen}"}
    # Programs of the enclosure begin in its root directory, not in that of the test.
    start = [str(MANDOR), "dev", "--nodes", "2", "--listen", listen, "--data", str(tmp_path / "data")]
    log = (tmp_path / "log").open("wb")

    def inside(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        command = docker.enclosure.command([sys.executable, "-m", "mandor.cli.main", *words])
        return subprocess.run(
            command, cwd=tmp_path, env=environ, input=given, capture_output=True, text=True, timeout=120, check=False
        )

    with log, subprocess.Popen(docker.enclosure.command(start), cwd=tmp_path, env=environ, stderr=log) as process:
        try:
            eventually("both nodes are ready", lambda: inside("get", "nodes").stdout.count("Ready") == 2)
            listed = json.loads(inside("get", "nodes", "-o", "json").stdout)["items"]
            first, second = sorted(each["meta"]["name"] for each in listed)
            for text in (SERVER.replace("FIRST", first), CLIENT.replace("SECOND", second)):
                applied = inside("apply", "-f", "-", "--wait", given=text)
                assert applied.returncode == 0, applied.stderr
            running = docker.cli("ps", "--quiet", "--filter", "label=io.mandor.uid").split()
            (box,) = (each for each in running if docker.inspect(each)["Config"]["Hostname"] == "client-0")

            def fetched() -> bool:
                # A static busybox does not look names up; the page is fetched where the hosts file leads.
                lines = [line.split() for line in docker.cli("exec", box, "cat", "/etc/hosts").splitlines()]
                addresses = [line[0] for line in lines if "web" in line[1:]]
                done = [docker.run("exec", box, "wget", "-q", "-O-", f"http://{each}:8000/") for each in addresses]
                return [each.stdout for each in done] == [b"hello\n"]

            eventually("the client reads the page by the name", fetched)
        finally:
            process.terminate()
            process.wait(60)
            inside("dev", "--stop", "--data", str(tmp_path / "data"))


SHOP = """
name: shop
engine: process
replicas: 2
command: [sh, -c, 'exec python3 -m http.server $MANDOR_PORT_HTTP']
ports: {http: auto}
services: [{port: {http: 80}}]
"""


@pytest.mark.real("nftables", "iproute2")
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_services_are_balanced_without_an_option_and_their_data_path_ends_with_the_cluster(tmp_path: Path) -> None:
    enclosure = Enclosure(tmp_path / "inside")
    for words in ("link add net0 type bridge", "address add 10.201.9.1/24 dev net0", "link set net0 up"):
        enclosure.run(["ip", *words.split()])
    listen = f"127.0.0.1:{free_port()}"
    data = str(tmp_path / "data")
    environ = {**os.environ, "MANDOR_SERVER": f"http://{listen}"}
    log = (tmp_path / "log").open("wb")

    def inside(*words: str, given: str = "", fails: bool = False) -> str:
        command = enclosure.command([MANDOR, *words])
        done = subprocess.run(
            command, env=environ, input=given, capture_output=True, text=True, timeout=120, check=False
        )
        assert fails or done.returncode == 0, done.stderr
        return done.stdout

    try:
        start = enclosure.command([MANDOR, "dev", "--listen", listen, "--data", data])
        with log, subprocess.Popen(start, env=environ, stderr=log) as process:
            try:
                eventually("the node is ready", lambda: "Ready" in inside("get", "nodes", fails=True))
                inside("apply", "-f", "-", "--wait", given=SHOP)
                address = eventually("the service has an address", lambda: virtual_address(inside("get", "services")))
                eventually("the service answers", lambda: "listing" in enclosure.fetch(address, 80))
                assert "mandor_balancer" in enclosure.run(["nft", "list", "tables"])
            finally:
                process.terminate()
        inside("dev", "--stop", "--data", data)
        assert "mandor_balancer" not in enclosure.run(["nft", "list", "tables"])
        assert "10.93." not in enclosure.run(["ip", "route", "show", "table", "all"])
    finally:
        enclosure.close()


def virtual_address(table: str) -> str:
    return next((word for word in table.split() if word.startswith("10.93.")), "")
