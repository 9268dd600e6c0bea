"""Real processes: a node that came too late gets its share, by the commands a person types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "rebalance.yaml"
ROOM = ("--capacity", "cpu=1", "--capacity", "memory=1Gi")


@pytest.fixture
def late(tmp_path: Path) -> Iterator[Cluster]:
    """Six on n1, and n2 empty."""
    with Cluster(tmp_path) as running:
        running.start_server()
        running.start_agent("n1", options=ROOM)
        running.wait_nodes("n1")
        running.apply(EXAMPLE.read_text().split("---")[1])
        running.wait_running("front", 6)
        running.start_agent("n2", options=ROOM)
        running.wait_nodes("n2")
        eventually("it is rolled out", lambda: rolled_out(running))
        yield running


def rolled_out(cluster: Cluster) -> bool:
    (front,) = cluster.items("workloads")
    return bool(front["status"]["rollout"].get("phase") == "Done")


def places(cluster: Cluster) -> list[str]:
    return sorted(each["spec"]["node"] for each in cluster.instances("front"))


def test_a_plan_changes_nothing_and_the_order_does_what_it_reported(late: Cluster) -> None:
    uids = {each["meta"]["uid"] for each in late.instances("front")}
    planned = json.loads(late.mandor("rebalance", "--plan", "--moves", "2", "-o", "json").stdout)["moves"]
    assert [(each["source"], each["to"]) for each in planned] == [("n1", "n2")] * len(planned)
    assert planned
    shown = late.mandor("rebalance", "--plan", "--moves", "2")
    assert "nothing was changed" in shown.stdout
    assert "NodeResourcesFit" in shown.stdout
    assert {each["meta"]["uid"] for each in late.instances("front")} == uids

    done = late.mandor("rebalance", "--moves", "2")
    assert done.returncode == 0, done.stderr
    assert f"moved {len(planned)} instances" in done.stdout
    assert "moved from n1 to n2" in done.stderr
    late.wait_running("front", 6)
    assert places(late).count("n2") == len(planned)
    assert late.mandor("rebalance", "--cancel").stdout == "no rebalance is active\n"


def test_a_standing_order_moves_by_itself_until_it_is_deleted(late: Cluster) -> None:
    late.apply(EXAMPLE.read_text())
    eventually("somebody moved", lambda: "n2" in places(late))
    table = late.mandor("get", "rebalances").stdout
    assert "steady" in table
    assert "10m" in table
    assert late.mandor("delete", "rebalance", "steady").returncode == 0
    late.wait_running("front", 6)
