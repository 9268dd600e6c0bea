"""A batch on every node as people use it: real agents that join, real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, eventually

EXAMPLE = (Path(__file__).parents[2] / "examples" / "batch-per-node.yaml").read_text(encoding="utf-8")


def status(cluster: Cluster) -> dict[str, Any]:
    found = [each for each in cluster.items("workloads") if each["meta"]["name"] == "disk-report"]
    return dict(found[0]["status"]) if found else {}


def counts(cluster: Cluster) -> tuple[str, int, int]:
    found = status(cluster)
    return found.get("phase", ""), found.get("succeeded", 0), found.get("wanted", 0)


@pytest.mark.req("S2-16")
def test_every_node_runs_it_once_and_a_node_that_joins_runs_it_too(tmp_path: Path) -> None:
    record = tmp_path / "record"
    manifest = EXAMPLE.replace("df -h /", f'echo "$MANDOR_NODE $VERSION" >> {record}') + 'env: {VERSION: "1"}\n'
    with Cluster(tmp_path) as cluster:
        cluster.start_server()
        for name in ("n1", "n2"):
            cluster.start_agent(name)
        cluster.wait_nodes("n1", "n2")
        cluster.apply(manifest)
        eventually("both nodes have finished", lambda: counts(cluster) == ("Succeeded", 2, 2))
        assert sorted(record.read_text().splitlines()) == ["n1 1", "n2 1"]

        cluster.start_agent("n3")
        cluster.wait_nodes("n3")
        eventually("the new node has finished, too", lambda: counts(cluster) == ("Succeeded", 3, 3))
        assert sorted(record.read_text().splitlines()) == ["n1 1", "n2 1", "n3 1"]

        cluster.apply(manifest.replace('"1"', '"2"'))

        def ran() -> bool:
            found = status(cluster)
            return (found["release"], found["phase"], found.get("succeeded")) == ("disk-report.2", "Succeeded", 3)

        eventually("the new release has run on all", ran)
        assert sorted(record.read_text().splitlines()) == ["n1 1", "n1 2", "n2 1", "n2 2", "n3 1", "n3 2"]
