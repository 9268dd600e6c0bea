"""Killing instances, agents and servers: nothing acknowledged is lost, nothing starts twice, work goes on."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, eventually

SLEEPER = """
name: {name}
replicas: {replicas}
engine: process
command: [sh, -c, "echo $$ >> {log}; exec sleep 1000"]
restart: {{delay: 200ms}}
stop: {{grace: 2s}}
"""


def starts(log: Path) -> list[int]:
    """The process ids of everything that ever started."""
    return [int(word) for word in log.read_text().split()] if log.exists() else []


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def running_is(log: Path, count: int) -> bool:
    return sum(map(alive, starts(log))) == count


def told(cluster: Cluster, instance: str) -> str:
    """All that the events say about an instance."""
    specs = [event["spec"] for event in cluster.items("events")]
    return " ".join(spec["message"] for spec in specs if spec["about"].endswith(f"/{instance}"))


def run_sleepers(cluster: Cluster, log: Path, *, name: str = "sleeper", replicas: int = 2) -> list[int]:
    cluster.apply(SLEEPER.format(name=name, replicas=replicas, log=log))
    cluster.wait_running(name, replicas)
    eventually(f"{replicas} wrote their process id", lambda: len(starts(log)) == replicas)
    return starts(log)


@pytest.mark.req("S2-9", "S2-17", "S2-49")
def test_a_killed_instance_is_restarted_in_place_and_shows_why(cluster: Cluster, tmp_path: Path) -> None:
    log = tmp_path / "starts"
    (first,) = run_sleepers(cluster, log, replicas=1)
    (before,) = cluster.instances("sleeper")

    os.kill(first, signal.SIGKILL)

    eventually("it started again", lambda: len(starts(log)) == 2)
    after = eventually(
        "it runs again",
        lambda: [one for one in cluster.instances("sleeper", phase="Running") if one["status"].get("restarts") == 1],
    )[0]
    assert after["meta"]["uid"] == before["meta"]["uid"]
    assert after["spec"]["node"] == "n1"
    eventually(
        "an event says why", lambda: "137" in told(cluster, "sleeper-0") or "SIGKILL" in told(cluster, "sleeper-0")
    )


@pytest.mark.req("S0-28", "S0-27", "S0-29")
def test_a_killed_agent_adopts_what_runs(cluster: Cluster, tmp_path: Path) -> None:
    log = tmp_path / "starts"
    pids = run_sleepers(cluster, log)
    agent = cluster.agents["n1"]

    agent.kill()
    assert all(alive(pid) for pid in pids)
    agent.start()
    cluster.wait_nodes("n1")
    cluster.apply(SLEEPER.format(name="second", replicas=1, log=tmp_path / "second"))
    cluster.wait_running("second", 1)

    assert starts(log) == pids
    assert all(alive(pid) for pid in pids)
    assert all(one["status"].get("restarts", 0) == 0 for one in cluster.instances("sleeper"))


@pytest.mark.req("S0-17", "S0-18", "S0-4")
def test_work_goes_on_without_a_control_plane_and_nothing_restarts_when_it_returns(
    cluster: Cluster, tmp_path: Path
) -> None:
    log = tmp_path / "starts"
    pids = run_sleepers(cluster, log)
    uids = {one["meta"]["uid"] for one in cluster.instances("sleeper")}
    server = cluster.servers[0]

    server.kill()
    until = time.monotonic() + 7  # longer than `lost_after`
    while time.monotonic() < until:
        assert all(alive(pid) for pid in pids)
        assert cluster.agents["n1"].running
        time.sleep(0.1)
    server.start()
    cluster.wait_ready()
    cluster.wait_nodes("n1")
    cluster.apply(SLEEPER.format(name="second", replicas=1, log=tmp_path / "second"))
    cluster.wait_running("second", 1)

    assert starts(log) == pids
    assert all(alive(pid) for pid in pids)
    assert {one["meta"]["uid"] for one in cluster.instances("sleeper", phase="Running")} == uids


@pytest.mark.req("S0-28", "S0-17")
def test_work_that_dies_while_the_control_plane_is_away_is_restarted_by_its_agent(
    cluster: Cluster, tmp_path: Path
) -> None:
    log = tmp_path / "starts"
    (first,) = run_sleepers(cluster, log, replicas=1)
    cluster.servers[0].kill()

    os.kill(first, signal.SIGKILL)
    eventually("it started again", lambda: len(starts(log)) == 2)
    cluster.agents["n1"].kill()
    os.kill(starts(log)[-1], signal.SIGKILL)
    cluster.agents["n1"].start()
    eventually("it started a third time, after an agent restart", lambda: len(starts(log)) == 3)

    cluster.servers[0].start()
    cluster.wait_ready()
    eventually(
        "both sides agree",
        lambda: [one for one in cluster.instances("sleeper", phase="Running") if one["status"].get("restarts") == 2],
    )
    assert alive(starts(log)[-1])


@pytest.mark.req("S0-24", "S0-20", "S2-50", "S2-19", "S2-44")
def test_a_lost_node_is_replaced_and_stops_what_was_replaced_when_it_returns(tmp_path: Path) -> None:
    log = tmp_path / "starts"
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.start_server()
        for name in ("n1", "n2"):
            cluster.start_agent(name)
        cluster.wait_nodes("n1", "n2")
        (first,) = run_sleepers(cluster, log, replicas=1)
        home = cluster.instances("sleeper")[0]["spec"]["node"]
        other = "n2" if home == "n1" else "n1"

        cluster.agents[home].kill()
        cluster.wait_nodes(home, phase="Down")
        eventually(
            "it runs on the other node",
            lambda: [one for one in cluster.instances("sleeper", phase="Running") if one["spec"]["node"] == other],
        )
        assert alive(first), "nobody but its own agent ends a process"

        cluster.agents[home].start()
        cluster.wait_nodes(home)
        eventually("the replaced copy is stopped", lambda: not alive(first))
        assert len(cluster.wait_running("sleeper", 1)) == 1
        assert len(starts(log)) == 2


@pytest.mark.req("S0-14")
def test_foreign_processes_are_never_touched(cluster: Cluster, tmp_path: Path) -> None:
    import subprocess

    with subprocess.Popen(["sleep", "1000"]) as foreign:
        try:
            run_sleepers(cluster, tmp_path / "starts", replicas=1)
            cluster.call("DELETE", "/v1/workloads/sleeper")
            eventually("it is gone", lambda: not cluster.instances("sleeper"))
            assert foreign.poll() is None
        finally:
            foreign.kill()


@pytest.mark.req("S2-18", "S2-11", "S2-16")
def test_a_service_is_scaled_up_and_down_and_deleted(cluster: Cluster, tmp_path: Path) -> None:
    log = tmp_path / "starts"
    run_sleepers(cluster, log, replicas=1)

    for count in (4, 2):
        status, answer = cluster.call(
            "PATCH", "/v1/workloads/sleeper", {"spec": {"groups": {"main": {"replicas": count}}}}
        )
        assert status == 200, answer
        cluster.wait_running("sleeper", count)
        eventually(f"{count} processes", partial(running_is, log, count))

    assert cluster.call("DELETE", "/v1/workloads/sleeper")[0] == 200
    eventually("everything is gone", lambda: not cluster.instances("sleeper"))
    eventually("no process is left", lambda: not any(map(alive, starts(log))))


@pytest.mark.req("S2-9", "S2-8")
def test_a_crash_loop_backs_off_then_fails_and_is_replaced_with_the_reason_shown(cluster: Cluster) -> None:
    cluster.apply(
        "name: broken\nengine: process\ncommand: [sh, -c, 'exit 3']\n"
        "restart: {delay: 100ms, max_delay: 200ms, attempts: 3}\nreschedule: {delay: 1s}\n"
    )
    before = eventually("it exists", lambda: cluster.instances("broken"))[0]["meta"]["uid"]
    eventually(
        "another took its place", lambda: [one for one in cluster.instances("broken") if one["meta"]["uid"] != before]
    )
    eventually("an event says why", lambda: "exit code 3" in told(cluster, "broken-0"))


@pytest.mark.req("S2-12", "S0-32")
def test_an_engine_that_no_node_has_leaves_it_pending_with_that_reason(cluster: Cluster) -> None:
    cluster.apply("name: elsewhere\nengine: fake\ncommand: [sleep, '1000']\n")

    found = eventually(
        "it says why", lambda: [one for one in cluster.instances("elsewhere") if one["status"].get("message")]
    )[0]

    assert found["status"]["phase"] == "Pending"
    assert "EngineFit" in found["status"]["message"] or "engine" in found["status"]["message"]


@pytest.mark.req("S0-30")
def test_logs_come_back_through_the_control_plane(cluster: Cluster) -> None:
    cluster.apply("name: talker\nengine: process\ncommand: [sh, -c, 'echo one; echo two >&2; exec sleep 1000']\n")
    cluster.wait_running("talker", 1)

    def read() -> bytes:
        status, body = cluster.call("GET", "/v1/instances/talker-0/logs")
        return body if status == 200 and b"two" in body else b""

    assert eventually("both lines are there", read).splitlines() == [b"one", b"two"]
