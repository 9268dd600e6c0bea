"""Daemons as people use them: real agents that join and leave, real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, eventually
from tests.e2e.test_drain import change, node

EXAMPLE = (Path(__file__).parents[2] / "examples" / "daemon.yaml").read_text(encoding="utf-8")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as running:
        running.start_server()
        running.start_agent("n1")
        running.wait_nodes("n1")
        yield running


def serving(cluster: Cluster) -> dict[str, Any]:
    """The nodes where it serves, with the release."""
    found = cluster.instances("exporter", phase="Running")
    return {each["spec"]["node"]: each["spec"]["release"] for each in found if each["status"].get("ready")}


@pytest.mark.req("S3-3", "S2-16")
def test_a_daemon_follows_its_nodes_and_is_rolled_out(cluster: Cluster) -> None:
    cluster.apply(EXAMPLE)
    eventually("it is on n1", lambda: serving(cluster) == {"n1": "exporter.1"})
    change(cluster, "n1", taints=[{"key": "kept", "effect": "NoSchedule"}], cordoned=True)
    cluster.start_agent("n2")
    cluster.wait_nodes("n2")
    eventually("it is on n2, too", lambda: serving(cluster).keys() == {"n1", "n2"})
    names = {each["meta"]["name"] for each in cluster.instances("exporter")}
    assert names == {"exporter-n1", "exporter-n2"}

    cluster.apply(EXAMPLE.replace('VERSION: "1"', 'VERSION: "2"'))
    eventually("it is updated", lambda: serving(cluster) == {"n1": "exporter.2", "n2": "exporter.2"})

    change(cluster, "n2", drain={})
    eventually("n2 is empty", lambda: node(cluster, "n2")["status"].get("drain", {}).get("phase") == "Drained")
    assert serving(cluster).keys() == {"n1"}
    change(cluster, "n2", drain=None)
    eventually("it comes back", lambda: serving(cluster).keys() == {"n1", "n2"})

    cluster.apply(EXAMPLE.replace('"exporter != off"', '"exporter == on"'))
    said = "no node matches: 2 not `exporter == on`"
    eventually("it says that it is nowhere", lambda: cluster.items("workloads")[0]["status"].get("message") == said)
    eventually("and it is", lambda: not cluster.instances("exporter"))
