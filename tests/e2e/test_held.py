"""After a restore, work that the backup does not contain is held, reported, and stopped by a command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, eventually

SLEEPER = "name: {}\nengine: process\ncommand: [sleep, '1000']\nstop: {{grace: 1s}}\n"


@pytest.mark.req("S0-18", "S2-22")
def test_held_work_is_reported_by_doctor_and_stopped_by_a_command(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        server = cluster.start_server()
        cluster.start_agent("n1")
        cluster.wait_nodes("n1")
        cluster.apply(SLEEPER.format("kept"))
        cluster.wait_running("kept", 1)
        assert cluster.mandor("backup", str(tmp_path / "saved")).returncode == 0
        cluster.apply(SLEEPER.format("later"))
        cluster.wait_running("later", 1)
        server.end()

        home = tmp_path / "restored"
        home.mkdir(mode=0o700)
        shutil.copy(tmp_path / "server0" / "secrets.key", home)
        done = cluster.mandor("restore", str(tmp_path / "saved"), "--data", str(home))
        assert done.returncode == 0, done.stderr
        server.command[server.command.index("--data") + 1] = str(home)
        server.start()
        cluster.wait_ready()
        cluster.wait_nodes("n1")

        found = eventually("doctor reports it", lambda: _finding(cluster), patience=120)
        assert "runs 1 instances that the cluster does not list, and leaves them as they are: later-0" in found
        assert "`mandor stop-held n1`" in found
        refused = cluster.mandor("stop-held", "n1")
        assert refused.returncode == 1
        assert len(list(cluster.units("n1"))) == 2

        stopped = cluster.mandor("stop-held", "n1", "--yes")
        assert stopped.returncode == 0, stopped.stderr
        assert stopped.stdout == "node n1 stopped 1: later-0\n"
        assert len(list(cluster.units("n1"))) == 1
        cluster.wait_running("kept", 1)
        assert not _finding(cluster)


def _finding(cluster: Cluster) -> str:
    """Return what `mandor doctor` prints, if it reports held instances."""
    shown = cluster.mandor("doctor").stdout
    return shown if "stop-held" in shown else ""
