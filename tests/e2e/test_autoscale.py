"""A count that follows what real processes use, as their agent measures it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, eventually

EXAMPLE = (Path(__file__).parents[2] / "examples" / "autoscale.yaml").read_text(encoding="utf-8")


HOLDER = """
name: holder
engine: process
command:
  - python3
  - -c
  - |
    import os, time
    held = b""
    while True:
        held = (held or b"x" * (60 << 20)) if os.path.exists("{load}") else b""
        time.sleep(0.2)
resources: {{cpu: 10m, memory: 64Mi}}
stop: {{grace: 1s}}
autoscale: {{min: 1, max: 3, memory: 50%, down: {{window: 5s}}}}
"""


def _workload(cluster: Cluster, name: str) -> Any:
    return next(each for each in cluster.items("workloads") if each["meta"]["name"] == name)


def _busy(cluster: Cluster) -> Any:
    return _workload(cluster, "busy")


@pytest.mark.req("S2-47", "S0-20")
def test_a_process_that_burns_its_cpu_gets_company_and_loses_it_again(tmp_path: Path) -> None:
    load = tmp_path / "load"
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.start_server()
        cluster.start_agent("n1", environ={"MANDOR_HEARTBEAT": "1s"})
        cluster.wait_nodes("n1")
        cluster.apply(EXAMPLE.replace("/tmp/mandor-load", str(load)))
        cluster.wait_running("busy", 1)
        eventually("its usage is known", lambda: _busy(cluster)["status"]["autoscale"]["main"].get("readings"))
        load.touch()
        eventually("the load makes it three", lambda: len(cluster.instances("busy", phase="Running")) == 3)
        told = _busy(cluster)["status"]["autoscale"]["main"]
        assert "target 50%" in told["last"]
        load.unlink()
        eventually(
            "without the load it is one again",
            lambda: [each["meta"]["name"] for each in cluster.instances("busy")] == ["busy-0"],
            patience=120,
        )
        assert _busy(cluster)["spec"]["groups"]["main"]["replicas"] == 1


@pytest.mark.req("S2-47")
def test_a_process_that_holds_memory_gets_replicas_until_it_frees_the_memory(tmp_path: Path) -> None:
    load = tmp_path / "load"
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.start_server()
        cluster.start_agent("n1", environ={"MANDOR_HEARTBEAT": "1s"})
        cluster.wait_nodes("n1")
        cluster.apply(HOLDER.format(load=load))
        cluster.wait_running("holder", 1)

        def seen() -> Any:
            return _workload(cluster, "holder")["status"]["autoscale"]["main"]

        eventually("its usage is known", lambda: seen().get("readings"))
        assert len(cluster.instances("holder")) == 1
        load.touch()
        cluster.wait_running("holder", 3)
        assert "memory" in seen()["last"]
        assert "target 50%" in seen()["last"]
        load.unlink()
        eventually("there is one again", lambda: len(cluster.instances("holder")) == 1, patience=120)
