"""Real processes on a full machine: what matters more takes the place of what matters less, which comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "priorities.yaml"


@pytest.mark.req("S1-35", "S3-26", "S3-27", "S3-34")
def test_the_important_one_gets_the_place_and_the_other_is_back_when_there_is_room(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        server = cluster.start_server()
        cluster.start_agent("n1", options=("--capacity", "cpu=1"))
        cluster.wait_nodes("n1")
        cluster.apply(EXAMPLE.read_text())
        (report,) = cluster.wait_running("report", 1)

        scale(cluster, 1)
        cluster.wait_running("shop", 1)

        (waiting,) = cluster.instances("report")
        assert waiting["status"]["phase"] == "Pending"
        assert waiting["meta"]["uid"] != report["meta"]["uid"]
        told = eventually("the events are written", lambda: preemption_events(cluster))
        assert told["Preempts"] == "takes the place of report-0 on n1"
        assert "shop-0" in told["Preempted"]

        server.kill()
        server.start()
        cluster.wait_ready()
        scale(cluster, 0)
        (back,) = cluster.wait_running("report", 1)
        assert back["spec"].get("attempt", 0) == 0
        eventually("the shop is gone", lambda: not cluster.instances("shop"))


def preemption_events(cluster: Cluster) -> dict[str, str]:
    """Return the messages of all events by reason; empty: those of the preemption are not written yet."""
    found = {event["spec"]["reason"]: event["spec"]["message"] for event in cluster.items("events")}
    return found if {"Preempts", "Preempted"} <= found.keys() else {}


def scale(cluster: Cluster, count: int) -> None:
    body = {"spec": {"groups": {"main": {"replicas": count}}}}
    status, answer = cluster.call("PATCH", "/v1/workloads/shop", body)
    assert status == 200, answer
