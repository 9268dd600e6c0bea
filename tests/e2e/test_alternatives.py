"""A container, else a process: on a cluster without Docker, with it, and when it comes later."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.components.docker import Docker
from tests.components.image import NAME
from tests.e2e.cluster import Cluster, eventually

MANDOR = Path(sys.executable).with_name("mandor")
EXAMPLE = Path(__file__).parents[2] / "examples" / "alternatives.yaml"
WEB = f"""
name: web
engine: docker
image: {NAME}
command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
resources: {{cpu: 200m, memory: 64Mi}}
stop: {{grace: 2s}}
alternatives:
  - {{engine: process, command: [sleep, "1000"], resources: {{cpu: 100m}}}}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", settings={"MANDOR_RESTORE_AFTER": "1s"}) as running:
        running.start_server()
        yield running


def mandor(cluster: Cluster, *words: str) -> str:
    env = {**os.environ, "MANDOR_SERVER": cluster.urls[0]}
    done = subprocess.run([MANDOR, *words], capture_output=True, text=True, env=env, timeout=120, check=False)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def start_docker_node(cluster: Cluster, name: str, docker: Docker) -> None:
    cluster.start_agent(name, engines=("docker",), environ={"DOCKER_HOST": f"unix://{docker.socket}"})
    cluster.wait_nodes(name)


def only(cluster: Cluster, workload: str) -> dict[str, Any]:
    (found,) = cluster.wait_running(workload, 1)
    return dict(found)


@pytest.mark.req("S0-2", "S0-35")
def test_without_docker_the_example_runs_as_a_process_and_it_is_reported_why(cluster: Cluster) -> None:
    cluster.start_agent("n1")
    cluster.wait_nodes("n1")
    assert "alternative 1 (process)" in mandor(cluster, "plan", "-f", str(EXAMPLE))
    mandor(cluster, "apply", "-f", str(EXAMPLE), "--wait")
    found = only(cluster, "page")
    assert (found["spec"]["variant"], found["status"]["engine"]) == (1, "process")

    said = mandor(cluster, "explain", "page-0")
    assert "does not fit: the main form: 0/1 nodes fit: 1 EngineFit (no docker or podman" in said
    assert "form: alternative 1 (process)" in said
    assert "alternative 1" in mandor(cluster, "get", "instances", "-o", "wide")
    assert "alternative 1" in mandor(cluster, "describe", "instance", "page-0")
    assert "alternative 1: " in mandor(cluster, "describe", "workload", "page")
    mandor(cluster, "delete", "-f", str(EXAMPLE), "--wait")


@pytest.mark.real("docker")
@pytest.mark.req("S0-2", "S0-20", "S2-27")
def test_a_process_becomes_a_container_when_a_node_with_docker_comes(
    cluster: Cluster, new_docker: Callable[..., Docker]
) -> None:
    cluster.start_agent("n1")
    cluster.wait_nodes("n1")
    cluster.apply(WEB)
    assert only(cluster, "web")["status"]["engine"] == "process"

    start_docker_node(cluster, "n2", new_docker())

    def a_container() -> bool:
        return [(each["status"].get("engine"), each["status"]["phase"]) for each in cluster.instances("web")] == [
            ("docker", "Running")
        ]

    eventually("it is a container", a_container)
    (found,) = cluster.instances("web")
    assert (found["spec"]["node"], found["spec"].get("variant", 0)) == ("n2", 0)
    assert "form: the main form" in mandor(cluster, "explain", found["meta"]["name"])
    assert cluster.call("DELETE", "/v1/workloads/web")[0] == 200
    eventually("nothing is left", lambda: not cluster.instances())


@pytest.mark.real("docker")
@pytest.mark.req("S0-2")
def test_where_only_docker_is_it_runs_there(cluster: Cluster, new_docker: Callable[..., Docker]) -> None:
    start_docker_node(cluster, "n1", new_docker())
    cluster.apply(WEB)
    found = only(cluster, "web")
    assert (found["status"]["engine"], found["spec"].get("variant", 0)) == ("docker", 0)
    assert cluster.call("DELETE", "/v1/workloads/web")[0] == 200
    eventually("nothing is left", lambda: not cluster.instances())
