"""Well-known public applications on three machines with a real dockerd each: services make their names work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from mandor.importers.base import Options, Source
from mandor.importers.registry import import_files
from mandor.lib.yaml12 import dump
from tests.components.docker import Docker
from tests.components.ports import free_port
from tests.e2e.cluster import Cluster, eventually
from tests.e2e.docker_machines import DockerMachine, agents, docker_machines
from tests.e2e.test_public_applications import APPLICATIONS, images

NAMES = ("n1", "n2", "n3")


@pytest.fixture
def machines(new_docker: Callable[..., Docker]) -> Iterator[list[DockerMachine]]:
    archive = images()
    with docker_machines(NAMES, new_docker) as made:
        for machine in made:
            machine.docker.cli("load", data=archive)
        yield made


@pytest.fixture
def cluster(machines: list[DockerMachine], tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as running:
        running.start_server()
        with agents(running, machines):
            yield running


def published(cluster: Cluster, workload: str, namespace: str, chosen: set[int]) -> tuple[str, int] | None:
    """Return the node of an instance and a published port of the workload: one of the chosen numbers, else any."""
    found = [
        (each["spec"]["node"], port["host"])
        for each in cluster.items("instances", namespace=namespace)
        for port in each["status"].get("ports", ())
        if each["spec"]["workload"] == workload and each["status"].get("ready") and port.get("host")
    ]
    fitting = [each for each in found if each[1] in chosen] or found
    return fitting[0] if fitting else None


@pytest.mark.real("docker", "nftables", "iproute2")
@pytest.mark.timeout(600)
@pytest.mark.req("S0-32", "S2-28", "S2-29")
def test_public_applications_answer_over_http_with_parts_on_three_nodes(
    cluster: Cluster, machines: list[DockerMachine]
) -> None:
    numbers = count(free_port())
    chosen: dict[str, set[int]] = {}
    for name, application in APPLICATIONS.items():
        ports = next(numbers), next(numbers)
        chosen[name] = set(ports)
        text = application.text.replace("PORT-1", str(ports[0])).replace("PORT-2", str(ports[1]))
        made = import_files([Source(application.file, text)], Options(project=name)).made
        manifests = [{"kind": "namespace", "name": name, "level": "baseline"}]
        manifests += [each.manifest | {"namespace": name} for each in made]
        cluster.apply("---\n".join(map(dump, manifests)))
    by_name = {each.name: each for each in machines}
    for name, application in APPLICATIONS.items():
        for workload, wanted in application.pages.items():
            shown: set[str] = set()

            def complete(
                name: str = name, workload: str = workload, wanted: set[str] = wanted, shown: set[str] = shown
            ) -> bool:
                place = published(cluster, workload, name, chosen[name])
                if place is not None:  # The caller is on another machine than the page.
                    caller = machines[(NAMES.index(place[0]) + 1) % len(machines)]
                    shown |= set(caller.fetch(by_name[place[0]].address, place[1]).splitlines())
                return wanted <= shown

            try:
                eventually(f"the pages of {workload} in {name} show all parts", complete, patience=240)
            except AssertionError as error:
                instances = json.dumps(cluster.items("instances", namespace=name))[:6000]
                raise AssertionError(
                    f"{name}: missing: {sorted(wanted - shown)}; shown: {sorted(shown)}; {instances}"
                ) from error
    used = {
        name: {each["spec"]["node"] for each in cluster.items("instances", namespace=name)} for name in APPLICATIONS
    }
    assert set().union(*used.values()) == set(NAMES)
    assert sum(len(nodes) > 1 for nodes in used.values()) > len(used) / 2, used
