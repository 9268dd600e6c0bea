"""Real processes: what is reserved is kept from others, used by whom it is for, and free again when it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.cluster import Cluster, eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "reservation.yaml"
CAMPAIGN = """\
name: campaign
command: [sleep, infinity]
replicas: 6
resources: {cpu: 100m, memory: 32Mi}
"""


def mandor(cluster: Cluster, *words: str) -> str:
    command = [sys.executable, "-m", "mandor.cli.main", "--server", cluster.urls[0], *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout


def running(cluster: Cluster, workload: str) -> int:
    return len(cluster.instances(workload, phase="Running"))


def test_the_example_keeps_room_for_the_campaign(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start_server()
        cluster.start_agent("n1", options=("--capacity", "cpu=1", "--capacity", "memory=1Gi"))
        cluster.wait_nodes("n1")
        reservation, other = EXAMPLE.read_text().split("---")
        cluster.apply(reservation)
        eventually("it holds", lambda: cluster.items("reservations")[0].get("status", {}).get("held") == {"n1": 6})
        assert "6/6" in mandor(cluster, "get", "reservations")
        cluster.apply(other)
        eventually("others get the rest", lambda: running(cluster, "other") == 4)

        def told() -> bool:
            waiting = cluster.instances("other", phase="Pending")
            return len(waiting) == 6 and all("reserved for" in each["status"].get("message", "") for each in waiting)

        eventually("they are told why", told)
        waiting = cluster.instances("other", phase="Pending")[0]["meta"]["name"]
        assert "reserved for default/campaign (campaign) until 2099" in mandor(cluster, "explain", "instance", waiting)
        assert "Active" in mandor(cluster, "describe", "reservation", "campaign")

        cluster.apply(CAMPAIGN)
        cluster.wait_running("campaign", 6)
        assert running(cluster, "other") == 4
        for path in ("reservations/campaign", "workloads/campaign"):
            assert cluster.call("DELETE", f"/v1/{path}")[0] == 200
        cluster.wait_running("other", 10)
