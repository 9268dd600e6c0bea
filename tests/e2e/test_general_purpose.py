"""One cluster runs services, batches and daemons, as processes and as containers."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path

import pytest

from tests.components.docker import Docker
from tests.components.image import NAME
from tests.e2e.cluster import Cluster, eventually

WORK = f"""
name: shop
replicas: 2
image: {NAME}
command: [sh, -c, 'echo a container; exec sleep 1000']
stop: {{grace: 0s}}
---
name: site
engine: process
command: [sh, -c, 'echo a process; exec sleep 1000']
stop: {{grace: 0s}}
---
name: training
type: batch
batch: {{completions: 3, parallelism: 3, indexed: true}}
image: {NAME}
command: [sh, -c, 'echo trained part $MANDOR_INDEX']
---
name: sums
type: batch
engine: process
command: [sh, -c, 'echo $((6 * 7))']
---
name: collector
type: daemon
engine: process
command: [sh, -c, 'echo on $MANDOR_NODE; exec sleep 1000']
stop: {{grace: 0s}}
"""


@pytest.mark.real("docker")
@pytest.mark.slow
@pytest.mark.req("S0-1")
def test_services_batches_and_daemons_run_in_one_cluster_as_processes_and_containers(
    new_docker: Callable[..., Docker], tmp_path: Path
) -> None:
    environ = {"DOCKER_HOST": f"unix://{new_docker().socket}"}
    with Cluster(tmp_path) as cluster:
        cluster.start_server()
        cluster.start_agent("with-docker", engines=("docker", "process"), environ=environ)
        cluster.start_agent("plain")
        cluster.wait_nodes("with-docker", "plain")
        cluster.apply(WORK)

        def printed(instance: str) -> str:
            return cluster.mandor("logs", instance).stdout.strip()

        for each in cluster.wait_running("shop", 2):
            assert (each["status"]["engine"], each["spec"]["node"]) == ("docker", "with-docker")
            assert printed(each["meta"]["name"]) == "a container"
        (site,) = cluster.wait_running("site", 1)
        assert site["status"]["engine"] == "process"
        eventually("all parts are trained", lambda: len(cluster.instances("training", phase="Succeeded")) == 3)
        assert {printed(f"training-{index}") for index in range(3)} == {f"trained part {index}" for index in range(3)}
        eventually("the sum is known", lambda: cluster.instances("sums", phase="Succeeded"))
        assert printed("sums-0") == "42"
        daemons = cluster.wait_running("collector", 2)
        assert {each["spec"]["node"] for each in daemons} == {"with-docker", "plain"}
        assert {printed(each["meta"]["name"]) for each in daemons} == {"on with-docker", "on plain"}


@pytest.mark.req("S0-1")
def test_no_dependency_of_the_package_is_a_client_of_kubernetes() -> None:
    assert not [each for each in requires("mandor") or () if "kube" in each.lower()]
