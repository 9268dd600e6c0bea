"""A secret on its way from a manifest to a real process, and what is left of it on disks."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.cluster import Cluster, eventually

EXAMPLE = (Path(__file__).parents[2] / "examples" / "secrets.yaml").read_text(encoding="utf-8")


def test_the_example_runs_and_no_disk_of_the_control_plane_shows_the_password(cluster: Cluster) -> None:
    cluster.apply(EXAMPLE)
    eventually("the report is done", lambda: cluster.instances("report", phase="Succeeded"))
    assert cluster.mandor("logs", "report-0").stdout.strip() == "logged in as shop, password of 9 bytes"
    assert "password,user" in cluster.mandor("get", "secrets").stdout
    assert "change-me" not in cluster.mandor("get", "secrets", "-o", "yaml").stdout
    written = [path for path in cluster.directory.rglob("*") if path.is_file() and "nodes" not in path.parts]
    assert any(path.name.startswith("state.db") for path in written)
    for path in written:
        assert b"change-me" not in path.read_bytes(), path
    for path in cluster.directory.rglob("orders/*.json"):
        assert b"change-me" not in path.read_bytes(), path
