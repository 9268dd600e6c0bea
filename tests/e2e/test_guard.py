"""Agents that are killed or frozen: what may not run without a control plane does not."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from mandor.engines.base import UnitPhase
from mandor.engines.registry import make_engine
from mandor.lib.lock import LockHeld, hold
from mandor.roots.guard import LOCK
from tests.components.image import NAME
from tests.components.incus import IMAGE
from tests.e2e.cluster import Cluster, eventually
from tests.e2e.test_survival import alive, starts

# Each one looks, when it begins, whether another one still runs.
SINGLE = """
name: {name}
engine: process
command:
  - sh
  - -c
  - 'for pid in $(cat {log} 2>/dev/null); do kill -0 $pid 2>/dev/null && echo $pid >> {log}.twice; done;
     echo $$ >> {log}; exec sleep 1000'
restart: {{delay: 200ms}}
stop: {{grace: 1s}}
disconnect: {{{disconnect}}}
placement: {{where: ["node != {away_from}"]}}
"""


def guards(cluster: Cluster, name: str) -> bool:
    try:
        with hold(cluster.home(name) / LOCK):
            return False
    except LockHeld:
        return True


def begin(cluster: Cluster, log: Path, disconnect: str, *, away_from: str = "nowhere") -> int:
    """One instance of a workload that is called as its log; the process."""
    cluster.apply(SINGLE.format(name=log.name, log=log, disconnect=disconnect, away_from=away_from))
    cluster.wait_running(log.name, 1)
    eventually("it wrote its process id", lambda: starts(log))
    return starts(log)[-1]


def node_of(cluster: Cluster, workload: str) -> str:
    (found,) = cluster.wait_running(workload, 1)
    return str(found["spec"]["node"])


@pytest.mark.req("S0-25")
@pytest.mark.slow
def test_what_must_not_run_twice_does_not_though_its_agent_is_killed_or_frozen(tmp_path: Path) -> None:
    logs, free = {name: tmp_path / f"on-{name}" for name in ("n1", "n2")}, tmp_path / "free"
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.start_server()
        for name in logs:
            cluster.start_agent(name)
        cluster.wait_nodes(*logs)
        first = {
            name: begin(cluster, log, "stop_after: 10s, lost_after: 21s", away_from=other)
            for (name, log), other in zip(logs.items(), reversed(logs), strict=True)
        }
        other = begin(cluster, free, "lost_after: 10m")
        assert all(guards(cluster, name) for name in logs)

        # Where most nodes are silent at once, they are given up one by one.
        for name in ("n3", "n4"):
            cluster.start_agent(name)
        cluster.wait_nodes("n1", "n2", "n3", "n4")

        # Back in time: nothing is stopped.
        cluster.agents["n1"].kill()
        cluster.agents["n1"].start()
        cluster.wait_nodes("n1")
        assert guards(cluster, "n1")
        assert all(alive(pid) for pid in first.values())

        # One is dead, one is frozen.
        cluster.agents["n1"].kill()
        frozen = cluster.agents["n2"].process
        assert frozen is not None
        frozen.send_signal(signal.SIGSTOP)
        try:
            eventually("they are stopped though no agent sees to it", lambda: not any(map(alive, first.values())))
            eventually("others begin", lambda: all(len(starts(log)) == 2 for log in logs.values()))
        finally:
            frozen.send_signal(signal.SIGCONT)
        assert {node_of(cluster, log.name) for log in logs.values()} <= {"n3", "n4"}
        cluster.agents["n1"].start()
        cluster.wait_nodes("n1", "n2")
        eventually("guards are not needed there any more", lambda: not any(guards(cluster, name) for name in logs))
        assert alive(other)
        assert len(starts(free)) == 1
        assert all(len(starts(log)) == 2 for log in logs.values())
        assert not list(tmp_path.glob("*.twice"))


CONTAINER = """
name: {name}
image: {image}
engine: {engine}
command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 0.1; done"]
restart: {{delay: 200ms}}
stop: {{grace: 1s}}
"""


class Kit:
    """An engine with a real daemon, as an agent is told of it and as a test looks at it."""

    def __init__(self, name: str, image: str, **settings: str) -> None:
        self.name, self.image, self._settings = name, image, settings

    @property
    def options(self) -> tuple[str, ...]:
        return tuple(
            word for key, value in self._settings.items() for word in ("--engine-option", f"{self.name}.{key}={value}")
        )

    def running(self, home: Path) -> set[str]:
        """The instances of which something runs, by uid; asked of the daemon itself, beside whatever agent there is."""

        async def ask() -> set[str]:
            async with make_engine(self.name, directory=home / "engines" / self.name, **self._settings) as engine:
                return {each.unit.uid for each in await engine.list() if each.phase is UnitPhase.RUNNING}

        return asyncio.run(ask())


@pytest.fixture(params=["podman", "cri", "incus"])
def kit(request: pytest.FixtureRequest) -> Kit:
    if request.param == "incus":
        return Kit("incus", IMAGE, url=request.getfixturevalue("incus").url)
    daemon = request.getfixturevalue("podman" if request.param == "podman" else "containerd")
    return Kit(request.param, NAME, socket=str(daemon.socket))


@pytest.mark.req("S0-25")
@pytest.mark.slow
def test_a_guard_stops_what_any_engine_runs(kit: Kit, tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.start_server()
        agent = cluster.start_agent("n1", engines=(kit.name,), options=kit.options)
        cluster.wait_nodes("n1")
        for name, disconnect in (("single", "{stop_after: 5s}"), ("free", "{lost_after: 10m}")):
            work = CONTAINER.format(name=name, image=kit.image, engine=kit.name)
            cluster.apply(f"{work}disconnect: {disconnect}\n")
        (single,), (free,) = cluster.wait_running("single", 1), cluster.wait_running("free", 1)
        uids = {each["meta"]["uid"] for each in (single, free)}
        assert kit.running(cluster.home("n1")) == uids

        agent.kill()
        eventually(
            "the one is stopped, the other is not", lambda: kit.running(cluster.home("n1")) == {free["meta"]["uid"]}
        )
        agent.start()
        eventually(
            "it is told why", lambda: "Disconnected" in {each["spec"]["reason"] for each in cluster.items("events")}
        )
        cluster.wait_running("single", 1)

        assert agent.process is not None
        agent.process.send_signal(signal.SIGSTOP)
        try:
            eventually(
                "so it is while its agent is frozen", lambda: kit.running(cluster.home("n1")) == {free["meta"]["uid"]}
            )
        finally:
            agent.process.send_signal(signal.SIGCONT)
        cluster.wait_running("single", 1)
        for name in ("single", "free"):
            assert cluster.call("DELETE", f"/v1/workloads/{name}")[0] == 200
        eventually("nothing is left", lambda: not cluster.instances())
