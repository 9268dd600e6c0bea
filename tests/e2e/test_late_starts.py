"""Starts that dockerd hears of only when nobody wants them any more: none of them ever runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.components.docker import Docker
from tests.components.image import NAME
from tests.components.slow_line import SlowLine
from tests.e2e.cluster import Cluster, eventually

pytestmark = pytest.mark.real("docker")

WORK = f"""
name: {{name}}
image: {NAME}
engine: docker
command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
stop: {{{{grace: 1s}}}}
"""
CREATE, START = 0, 1
"""Which order of a start is held up."""


@pytest.fixture
def own_docker(new_docker: Callable[..., Docker]) -> Docker:
    return new_docker()


@pytest.fixture
def line(own_docker: Docker) -> Iterator[SlowLine]:
    line = SlowLine(own_docker.socket)
    yield line
    line.close()


@pytest.fixture
def cluster(own_docker: Docker, line: SlowLine, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as running:
        running.start_server()
        running.start_agent("n1", engines=("docker",), environ={"DOCKER_HOST": f"unix://{line.socket}"})
        running.wait_nodes("n1")
        yield running


def containers(docker: Docker) -> list[str]:
    return docker.cli("ps", "--all", "--filter", "label=io.mandor.uid", "--format", "{{.State}}").splitlines()


def begun(docker: Docker, work: str) -> int:
    """How many containers of that workload ever began."""
    names = docker.cli(
        *("events", "--since", "0", "--until", f"{time.time():.6f}", "--filter", "event=start"),
        *("--format", '{{index .Actor.Attributes "io.mandor.name"}}'),
    )
    return names.splitlines().count(f"{work}-0")


@pytest.mark.req("S0-14", "S0-27")
def test_what_is_deleted_while_its_start_is_on_its_way_never_runs(
    cluster: Cluster, own_docker: Docker, line: SlowLine
) -> None:
    for name, order in (("first", CREATE), ("second", START)):
        line.hold(order)
        cluster.apply(WORK.format(name=name))
        line.wait_held()
        assert cluster.call("DELETE", f"/v1/workloads/{name}")[0] == 200
        eventually(f"{name} is gone", lambda: not cluster.instances())
        line.release()
        assert "running" not in containers(own_docker)
    cluster.apply(WORK.format(name="third"))
    cluster.wait_running("third", 1)
    eventually("nothing is left of the others", lambda: containers(own_docker) == ["running"])
    assert [begun(own_docker, name) for name in ("first", "second", "third")] == [0, 0, 1]


@pytest.mark.req("S0-14", "S0-25")
def test_what_may_not_run_alone_does_not_begin_after_its_agent_was_killed(
    cluster: Cluster, own_docker: Docker, line: SlowLine
) -> None:
    line.hold(START)
    cluster.apply(WORK.format(name="single") + "disconnect: {stop_after: 2s}\n")
    line.wait_held()
    cluster.agents["n1"].kill()
    eventually("its guard takes away what was made", lambda: not containers(own_docker))
    line.release()
    assert begun(own_docker, "single") == 0
    cluster.agents["n1"].start()
    cluster.wait_running("single", 1)
    assert begun(own_docker, "single") == 1
