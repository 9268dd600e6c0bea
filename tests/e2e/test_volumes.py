"""Volumes with real processes: what is in them survives the death of everything around them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, eventually

EXAMPLE = (Path(__file__).parents[2] / "examples" / "volumes.yaml").read_text(encoding="utf-8")


def volumes(cluster: Cluster) -> dict[str, Any]:
    return {each["meta"]["name"]: each for each in cluster.items("volumes")}


def folder(cluster: Cluster, name: str) -> Path:
    return Path(eventually(f"{name} is made", lambda: volumes(cluster)[name]["status"].get("path")))


def count(cluster: Cluster, name: str = "data-counter-0") -> int:
    file = folder(cluster, name) / "count"
    return int(eventually("it counts", lambda: file.exists() and file.read_text()))


def grows(cluster: Cluster, above: int, name: str = "data-counter-0") -> int:
    eventually(f"{name} counts beyond {above}", lambda: count(cluster, name) > above)
    return count(cluster, name)


def task(cluster: Cluster, instance: str) -> int:
    """The process id of the task of an instance."""
    (one,) = [each for each in cluster.instances() if each["meta"]["name"] == instance]
    mark = f"MANDOR_UNIT={one['meta']['uid']}.main.".encode()
    for number in filter(str.isdecimal, os.listdir("/proc")):
        try:
            environ = Path("/proc", number, "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(mark) for word in environ):
            return int(number)
    raise AssertionError(f"nothing of {instance} runs")


@pytest.mark.req("S2-37", "S2-38", "S2-39")
def test_a_counter_goes_on_through_the_death_of_everything(cluster: Cluster) -> None:
    cluster.apply(EXAMPLE)
    cluster.wait_running("counter", 2)
    before = grows(cluster, 3)

    os.kill(task(cluster, "counter-0"), signal.SIGKILL)
    before = grows(cluster, before + 3)

    cluster.agents["n1"].kill()
    os.kill(task(cluster, "counter-0"), signal.SIGKILL)
    cluster.agents["n1"].start()
    before = grows(cluster, before + 3)

    # Everything, as a power failure would: server, agent, work.
    cluster.servers[0].kill()
    cluster.stop_work("n1")
    file = cluster.home("n1") / "volumes" / "default" / "data-counter-0" / "data" / "count"
    stopped = int(file.read_text())
    assert stopped >= before
    cluster.servers[0].start()
    cluster.wait_ready()
    cluster.agents["n1"].start()
    grows(cluster, stopped)
    assert set(volumes(cluster)) == {"data-counter-0", "data-counter-1"}


@pytest.mark.req("S3-10")
def test_volumes_outlive_their_workload_and_go_when_they_are_deleted(cluster: Cluster) -> None:
    cluster.apply(EXAMPLE)
    cluster.wait_running("counter", 2)
    before = grows(cluster, 3)
    path = folder(cluster, "data-counter-0")
    status, answer = cluster.call("DELETE", "/v1/volumes/data-counter-0")
    assert (status, answer["code"]) == (409, "conflict")
    assert cluster.call("DELETE", "/v1/workloads/counter")[0] == 200
    eventually("nothing runs", lambda: not cluster.instances())

    cluster.apply(EXAMPLE)
    cluster.wait_running("counter", 2)
    assert grows(cluster, before) > before

    assert cluster.call("DELETE", "/v1/workloads/counter")[0] == 200
    eventually("nothing runs", lambda: not cluster.instances())
    assert cluster.call("DELETE", "/v1/volumes/data-counter-0")[0] == 200
    eventually("its folder is gone", lambda: not path.exists())
    assert folder(cluster, "data-counter-1").exists()


@pytest.mark.req("S2-37")
def test_a_task_sees_its_mounts_where_its_engine_can_mount(cluster: Cluster, tmp_path: Path) -> None:
    """Volume, host path and tmpfs at absolute paths; elsewhere the workload waits and says why."""
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    (allowed / "seen").write_text("from the host")
    cluster.start_agent("n2", options=("--allow-host-path", str(allowed)))
    cluster.wait_nodes("n1", "n2")
    script = (
        "cat /media/seen > /mnt/copied; touch /media/no 2>/dev/null || echo read-only >> /mnt/copied; "
        "df /srv >/dev/null && echo $MANDOR_VOLUME_DATA >> /mnt/copied; sleep 1000"
    )
    cluster.apply(
        f"""
name: seeing
engine: process
volumes: {{data: {{size: 1Mi}}, shown: {{type: host, path: {allowed}}}}}
mounts:
  - {{volume: data, path: /mnt}}
  - {{volume: shown, path: /media, read_only: true}}
  - {{tmpfs: 1Mi, path: /srv}}
command: [sh, -c, '{script}']
"""
    )
    (node,) = [each for each in cluster.items("nodes") if each["meta"]["name"] == "n2"]
    if "mounts" not in node["status"]["engines"]["process"]["extras"]:
        eventually(
            "it says why",
            lambda: any("has mounts" in one["status"].get("message", "") for one in cluster.instances("seeing")),
        )
        pytest.skip("the process engine makes no mounts here (it needs root); the refusal was tested")
    (one,) = cluster.wait_running("seeing", 1)
    assert one["spec"]["node"] == "n2", "the only one that allows the path"
    copied = folder(cluster, "data-seeing") / "copied"
    eventually(
        "it saw everything",
        lambda: copied.exists() and copied.read_text() == "from the host" + "read-only\n" + "/mnt\n",
    )
