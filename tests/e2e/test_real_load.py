"""Real agents measure, and the scheduler goes by it; devices are counted from the agent's settings to the decision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, eventually

PROFILES = """\
profiles:
- schedulerName: default
- schedulerName: by-load
  plugins:
    score:
      disabled: [{name: '*'}]
      enabled: [{name: LoadAware}]
"""
BUSY = """\
name: busy
engine: process
command: [sh, -c, 'while :; do :; done']
resources: {cpu: 10m}
placement: {where: ["node == a"]}
stop: {grace: 1s}
"""
QUIET = """\
name: quiet
replicas: 2
profile: by-load
engine: process
command: [sleep, '1000']
resources: {cpu: 10m}
stop: {grace: 1s}
"""
TRAINING = """\
name: training
replicas: 3
engine: process
command: [sleep, '1000']
resources: {cpu: 10m, devices: [{kind: gpu, vendor: nvidia}]}
stop: {grace: 1s}
"""


def _usage(cluster: Cluster, name: str) -> Any:
    return next(node["status"].get("usage", {}) for node in cluster.items("nodes") if node["meta"]["name"] == name)


@pytest.mark.req("S2-26", "S3-33")
def test_a_node_that_is_really_busy_gets_nothing_more_whatever_was_requested(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(PROFILES)
    with Cluster(tmp_path / "cluster", settings={"MANDOR_SCHEDULER_CONFIG": str(file)}) as cluster:
        cluster.start_server()
        for name in ("a", "b"):
            cluster.start_agent(name, options=("--capacity", "cpu=2"))
        cluster.wait_nodes("a", "b")
        cluster.apply(BUSY)
        cluster.wait_running("busy", 1)
        eventually("the load of a is known", lambda: _usage(cluster, "a").get("cpu_milli", 0) > 100)
        cluster.apply(QUIET)
        assert {one["spec"]["node"] for one in cluster.wait_running("quiet", 2)} == {"b"}


def test_devices_are_announced_by_agents_and_handed_out_once_each(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start_server()
        cluster.start_agent("plain")
        cluster.start_agent("red", options=("--device", "amd/gpu=4"))
        cluster.start_agent("green", options=("--device", "nvidia/gpu=2"))
        cluster.wait_nodes("plain", "red", "green")
        cluster.apply(TRAINING)

        def told() -> str:
            pending = cluster.instances("training", phase="Pending")
            return str(pending[0]["status"].get("message", "")) if len(pending) == 1 else ""

        eventually("the third one waits and says why", lambda: "nvidia/gpu" in told())
        placed = [one["spec"]["node"] for one in cluster.instances("training") if one["spec"].get("node")]
        assert placed == ["green", "green"]
        cluster.start_agent("more", options=("--device", "nvidia/gpu=1"))
        assert {one["spec"]["node"] for one in cluster.wait_running("training", 3)} == {"green", "more"}
