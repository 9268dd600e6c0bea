"""Servers and agents of two versions side by side, on one real etcd: a rolling upgrade, and half of a way back."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mandor import __version__
from mandor.client.sync import Client
from mandor.errors import MandorError
from tests.components.etcd import Etcd
from tests.e2e.cluster import Cluster, Program, eventually
from tests.e2e.next_version import FEATURE, VERSION, make_next_version

pytestmark = pytest.mark.real("etcd")

STEADY = "name: steady\nengine: process\nreplicas: 2\ncommand: [sleep, '1000']\n"
PACED = "name: paced\nengine: process\ncommand: [sleep, '1000']\ntempo: 4\n"


class Writer:
    """Somebody who goes on working through it all, by any server that answers; it knows what was acknowledged."""

    def __init__(self, urls: list[str]) -> None:
        self._client = Client(urls, answer_seconds=20.0)
        self._over = threading.Event()
        self.written: set[str] = set()
        self.unsure = 0

    def work(self) -> None:
        while not self._over.is_set():
            name = f"made-{len(self.written) + self.unsure}"
            try:
                self._client.call("PUT", f"/v1/namespaces/{name}", body={"spec": {}})
                self.written.add(name)
            except MandorError:
                self.unsure += 1  # a server ended in between: it may be there, and need not
            time.sleep(0.05)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self.work)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(60)


class Upgrade:
    def __init__(self, cluster: Cluster, new: Path) -> None:
        self.cluster, self.new = cluster, new

    def server(self, number: int, *, new: bool) -> None:
        self._exchange(self.cluster.servers[number], new=new)
        self.cluster.wait_ready(number)
        wanted = VERSION if new else __version__
        assert self.about(number)["version"] == wanted

    def agent(self, name: str, *, new: bool) -> None:
        self._exchange(self.cluster.agents[name], new=new)
        wanted = VERSION if new else __version__
        eventually(f"{name} is {wanted}", lambda: self.node(name)["status"].get("agent_version") == wanted)

    def _exchange(self, program: Program, *, new: bool) -> None:
        program.end()
        program.env = {name: value for name, value in program.env.items() if name != "PYTHONPATH"}
        if new:
            program.env["PYTHONPATH"] = str(self.new)
        program.start()

    def about(self, number: int) -> Any:
        return self.cluster.call("GET", "/v1", server=number)[1]

    def node(self, name: str, server: int = 0) -> Any:
        return self.cluster.call("GET", f"/v1/nodes/{name}", server=server)[1]

    def patch(self, name: str, spec: dict[str, Any], server: int) -> tuple[int, Any]:
        kind = "application/merge-patch+json"
        return self.cluster.call("PATCH", f"/v1/nodes/{name}", {"spec": spec}, server=server, content=kind)

    def known_everywhere(self, *numbers: int) -> bool:
        return all(FEATURE in self.about(number)["everywhere"] for number in numbers)


def uids(cluster: Cluster, workload: str) -> dict[str, str]:
    return {one["meta"]["uid"]: one["spec"]["release"] for one in cluster.instances(workload, phase="Running")}


@pytest.mark.req("S0-19", "S0-17", "S0-7")
def test_servers_and_agents_are_upgraded_one_by_one_under_load(tmp_path: Path, etcd: Etcd) -> None:
    new = make_next_version(tmp_path / "next")
    prefix = etcd.prefix()
    with Cluster(tmp_path, store=f"etcd://{','.join(etcd.endpoints)}{prefix}") as cluster:
        for _ in range(2):
            cluster.start_server()
        for name in ("a1", "a2"):
            cluster.start_agent(name)
        cluster.wait_nodes("a1", "a2")
        cluster.apply(STEADY)
        cluster.wait_running("steady", 2)
        steady = uids(cluster, "steady")
        upgrade, writer = Upgrade(cluster, new), Writer(cluster.urls)
        with writer.at_work():
            _first_server(upgrade)
            _all_servers(upgrade)
            _agents(upgrade)
            _one_back(upgrade)
        assert len(writer.written) > 20

        def lost() -> set[str]:
            return writer.written - {each["meta"]["name"] for each in cluster.items("namespaces")}

        # A server may see what another one wrote a moment later.
        eventually("everything that was acknowledged is there", lambda: not lost())
        assert writer.unsure <= 8, "requests failed though another server was there"
        assert uids(cluster, "steady") == steady
        assert all(one["status"].get("restarts", 0) == 0 for one in cluster.instances("steady"))


def _first_server(upgrade: Upgrade) -> None:
    """One is new: what is new is refused by both, each in its words, and written by nobody."""
    cluster = upgrade.cluster
    upgrade.server(0, new=True)
    assert FEATURE in upgrade.about(0)["features"]
    assert FEATURE not in upgrade.about(0)["everywhere"]
    status, problem = upgrade.patch("a1", {"rack": "r1"}, server=0)
    assert (status, problem["code"], problem["feature"]) == (422, "unsupported", FEATURE)
    status, problem = upgrade.patch("a1", {"rack": "r1"}, server=1)
    assert (status, problem["code"]) == (400, "invalid")
    assert "rack" in problem["detail"]
    for server, code in ((0, 422), (1, 400)):
        assert cluster.call("POST", "/v1/apply", PACED, server=server, content="application/yaml")[0] == code
    # An agent that is newer than a server does not tell it what it would not understand.
    upgrade.agent("a1", new=True)
    assert "firmware" not in upgrade.node("a1")["status"]
    told = cluster.mandor("doctor").stdout
    assert f"mixed versions: {__version__} at {cluster.urls[1]}; {VERSION} at {cluster.urls[0]}" in told
    assert FEATURE in told


def _all_servers(upgrade: Upgrade) -> None:
    """All are new: now it is used."""
    upgrade.server(1, new=True)
    eventually("every server knows it", lambda: upgrade.known_everywhere(0, 1))
    assert upgrade.patch("a1", {"rack": "r1"}, server=1)[0] == 200
    assert upgrade.node("a1")["spec"]["rack"] == "r1"


def _agents(upgrade: Upgrade) -> None:
    """An agent that is older than a server runs what it understands, and says what it does not."""
    cluster = upgrade.cluster
    assert upgrade.patch("a1", {"cordoned": True}, server=0)[0] == 200
    cluster.apply(PACED)

    def told() -> bool:
        events = cluster.items("events")
        return any(
            "does not know fields of its release: tasks.main.tempo" in each["spec"]["message"] for each in events
        )

    eventually("the older agent says so", told)
    assert upgrade.patch("a1", {"cordoned": False}, server=0)[0] == 200
    cluster.wait_running("paced", 1)
    upgrade.agent("a2", new=True)
    eventually("it tells what is new", lambda: upgrade.node("a2")["status"].get("firmware") == "f2")


def _one_back(upgrade: Upgrade) -> None:
    """One server is the old one again, and leads: it keeps what it does not know, and makes nothing of it."""
    cluster = upgrade.cluster
    paced, releases = uids(cluster, "paced"), len(cluster.items("releases"))
    upgrade.server(1, new=False)
    cluster.servers[0].end()

    def leads() -> bool:
        leases = {each["meta"]["name"]: each["spec"] for each in cluster.items("leases", server=1)}
        return all(leases[f"leader-{role}"].get("address") == cluster.urls[1] for role in ("controllers", "scheduler"))

    eventually("the old one leads", leads)
    assert upgrade.patch("a1", {"cordoned": True}, server=1)[0] == 200
    assert cluster.call("POST", "/v1/apply", STEADY, server=1, content="application/yaml")[0] == 200
    scaled = {"spec": {"groups": {"main": {"replicas": 2}}}}
    kind = "application/merge-patch+json"
    assert cluster.call("PATCH", "/v1/workloads/paced", scaled, server=1, content=kind)[0] == 200
    cluster.urls[0], first = cluster.urls[1], cluster.urls[0]
    cluster.wait_running("paced", 2)
    assert paced.items() <= uids(cluster, "paced").items()
    assert len(cluster.items("releases")) == releases
    upgrade.agent("a1", new=False)
    cluster.wait_nodes("a1", "a2")

    cluster.urls[0] = first
    cluster.servers[0].start()
    cluster.wait_ready(0)
    node = upgrade.node("a1")
    assert (node["spec"]["rack"], node["spec"]["cordoned"]) == ("r1", True)
    (task,) = cluster.call("GET", "/v1/workloads/paced")[1]["spec"]["groups"]["main"]["tasks"].values()
    assert task["tempo"] == 4
    assert upgrade.node("a1", server=1)["spec"] == node["spec"]
    eventually("one does not know it again", lambda: not upgrade.known_everywhere(0))
    assert upgrade.patch("a2", {"rack": "r2"}, server=0)[0] == 422


@pytest.mark.req("S0-19")
def test_versions_too_far_apart_refuse_each_other(tmp_path: Path, etcd: Etcd) -> None:
    new = make_next_version(tmp_path / "next")
    init = new / "mandor" / "__init__.py"
    init.write_text(init.read_text().replace(VERSION, "0.3.0"))
    with Cluster(tmp_path, store=f"etcd://{','.join(etcd.endpoints)}{etcd.prefix()}") as cluster:
        cluster.start_server()
        agent = cluster.start_agent("a1", environ={"PYTHONPATH": str(new)})
        words = f"the server has version {__version__}, the client 0.3.0: they may differ by 1 minor version"
        eventually("the agent is refused", lambda: words in agent.text())
        assert cluster.items("nodes") == []
        home = tmp_path / "far"
        command = [*cluster.servers[0].command[:-4], "--data", str(home), "--listen", "127.0.0.1:0"]
        far = Program("far", command, tmp_path / "far.log", {**cluster.servers[0].env, "PYTHONPATH": str(new)})
        home.mkdir()
        shutil.copy(tmp_path / "server0" / "secrets.key", home)
        far.start()
        assert far.process is not None
        assert far.process.wait(60) != 0
        assert f"this server has version 0.3.0, but {cluster.urls[0]} ({__version__}) is running" in far.text()
