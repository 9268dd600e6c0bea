"""Failed work is retried, and work that makes no progress is found and reported: by REST, command line and events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, eventually

FLAKY = """
name: flaky
type: batch
engine: process
batch: {{completions: 1, retries: 5}}
reschedule: {{delay: 200ms}}
restart: {{attempts: 0}}
command: [sh, -c, 'echo try >> {tries}; test $(wc -l < {tries}) -ge 3']
"""
HOPELESS = """
name: hopeless
type: batch
engine: process
batch: {{completions: 1, retries: 1}}
reschedule: {{delay: 200ms}}
restart: {{attempts: 0}}
command: [sh, -c, 'echo try >> {tries}; exit 3']
"""
WEB = """
name: web
engine: process
command: [sleep, '1000']
env: {{V: "{version}"}}
readiness: {{command: [{ready}], interval: 500ms}}
update: {{min_healthy: 1s, deadline: 3s, auto_rollback: false}}
stop: {{grace: 0s}}
"""
HUGE = """
name: huge
engine: process
command: [sleep, '1000']
resources: {memory: 900Ti}
"""


def workload(cluster: Cluster, name: str) -> Any:
    return next(each for each in cluster.items("workloads") if each["meta"]["name"] == name)


def reasons(cluster: Cluster, name: str) -> set[str]:
    found = [each["spec"] for each in cluster.items("events")]
    return {each["reason"] for each in found if name in json.dumps(each["about"])}


@pytest.mark.slow
@pytest.mark.req("S0-35")
def test_failed_work_is_retried_and_work_that_makes_no_progress_is_reported(tmp_path: Path) -> None:
    flaky, hopeless = tmp_path / "flaky", tmp_path / "hopeless"
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.start_server()
        for name in ("n1", "n2"):
            cluster.start_agent(name)
        cluster.wait_nodes("n1", "n2")

        # Retries: until success, and no more than allowed.
        cluster.apply(FLAKY.format(tries=flaky))
        cluster.apply(HOPELESS.format(tries=hopeless))
        eventually("the third try succeeds", lambda: workload(cluster, "flaky")["status"]["phase"] == "Succeeded")
        assert flaky.read_text().count("try") == 3
        eventually("the other one fails", lambda: workload(cluster, "hopeless")["status"]["phase"] == "Failed")
        assert hopeless.read_text().count("try") == 2

        # A release that never becomes ready.
        cluster.apply(WEB.format(version=1, ready="'true'"))
        eventually("the first release is ready", lambda: workload(cluster, "web")["status"].get("ready") == 1)
        cluster.apply(WEB.format(version=2, ready="'false'"))
        eventually("the second release is found stuck", lambda: "RolloutFailed" in reasons(cluster, "web"))
        assert "RolloutFailed" in cluster.mandor("events").stdout

        # An instance that fits nowhere: the reason for each node, by REST and on the command line.
        cluster.apply(HUGE)
        eventually("it waits", lambda: cluster.instances("huge", phase="Pending"))

        def explained() -> Any:
            status, answer = cluster.call("GET", "/v1/explain/instances/huge-0?nodes=true")
            return answer if status == 200 and "memory" in json.dumps(answer) else None

        verdicts = {each["node"]: each for each in eventually("it is explained", explained)["nodes"]}
        assert verdicts.keys() == {"n1", "n2"}
        assert {each["plugin"] for each in verdicts.values()} == {"NodeResourcesFit"}
        shown = cluster.mandor("explain", "huge-0", "--nodes").stdout
        assert {"n1", "n2"} <= set(shown.split()), shown
