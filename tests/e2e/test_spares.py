"""Spares through a real server: made by a real playbook, told to the upgrade controller, undone whatever happens."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.components.ports import free_port
from tests.e2e.cluster import Cluster, Program, eventually
from tests.e2e.hook import Hook, hooked

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "baremetal"
RECEIVER = """\
kind: secret
name: hook
value: change-me-to-what-openssl-rand-says
---
kind: webhook
name: upgrades
url: http://localhost:{port}/
secret: hook
events: ["spare.*", "task.TaskFailed"]
"""
PIPELINES = """\
joining: {{ansible: {{playbook: {folder}/vm.yaml}}, ready: node}}
slow: {{fake: {{takes: 3s}}, ready: at-once}}
endless: {{fake: {{hangs: true}}, ready: at-once, create_timeout: 1s, attempts: 1}}
lonely: {{fake: {{}}, ready: node, ready_timeout: 1s}}
"""
JOINING = """\
- hosts: all
  connection: local
  gather_facts: false
  vars: {{vm: "{folder}/vms/{{{{ mandor_vm.name }}}}"}}
  tasks:
  - name: The machine boots; its agent joins when the test lets it
    ansible.builtin.raw: |
      mkdir -p {{{{ vm }}}} && cd {{{{ vm }}}}
      setsid sh {folder}/boot {{{{ mandor_vm.name }}}} {{{{ vm }}}} </dev/null >log 2>&1 & echo $! > pid
    when: mandor_action == 'create'
  - name: The machine is switched off
    ansible.builtin.raw: test ! -e {{{{ vm }}}}/pid || {{ kill -9 $(cat {{{{ vm }}}}/pid); rm {{{{ vm }}}}/pid; }}
    when: mandor_action == 'delete'
"""
BOOT = """\
while [ ! -e {folder}/network ]; do sleep 0.1; done
exec {python} -m mandor.roots.agent --name $1 --data $2/data --server {url} --join-token-file {token} --engine process
"""


@contextmanager
def placing(folder: Path) -> Iterator[tuple[Cluster, Hook, Path]]:
    """The machines and pipelines of the example as they stand, and a few clusters where things go wrong."""
    port, made = free_port(), folder / "made"
    pipelines = folder / "pipelines.yaml"
    pipelines.write_text(
        (EXAMPLE / "pipelines.yaml").read_text().replace("examples/baremetal", str(EXAMPLE))
        + PIPELINES.format(folder=folder)
    )
    (folder / "vm.yaml").write_text(JOINING.format(folder=folder))
    nodes = Program("node api", [sys.executable, str(EXAMPLE / "node_api.py"), str(port)], folder / "nodes.log")
    settings = {
        "MANDOR_INVENTORY": f"http://127.0.0.1:{port}/nodes",
        "MANDOR_INVENTORY_EVERY": "1s",
        "MANDOR_PIPELINES": str(pipelines),
        "MANDOR_TASK_ATTEMPTS": "1",
        "MANDOR_EXAMPLE_VMS": str(made),
    }
    nodes.start()
    try:
        with Cluster(folder, settings=settings) as cluster, hooked() as hook:
            cluster.start_server()
            cluster.apply(RECEIVER.format(port=hook.server_port))
            eventually("its machines are known", lambda: len(cluster.items("nodes")) == 12)
            yield cluster, hook, made
    finally:
        nodes.kill()


def prepare(cluster: Cluster, name: str, **more: Any) -> str:
    body = {"size": {"cpu": 2, "memory": 1024}, "pool": "general", "cluster": name, **more}
    status, spare = cluster.call("POST", "/spare/prepare", body)
    assert (status, spare["status"]) == (200, "Preparing"), spare
    return str(spare["id"])


def phase(cluster: Cluster, spare: str, *wanted: str) -> dict[str, Any]:
    def so() -> dict[str, Any] | None:
        status, story = cluster.call("GET", f"/spare/{spare}")
        assert status == 200, story
        return story if story["status"] in wanted else None

    found: dict[str, Any] = eventually(f"the spare is {wanted}", so)
    return found


def told(hook: Hook, spare: str) -> list[str]:
    return [each["data"]["reason"] for each in hook.messages if each["subject"] == f"default/{spare}"]


@pytest.mark.req("S4-28", "S4-29", "S4-30", "S4-32", "S4-35")
def test_the_upgrade_controller_is_reported_that_spares_are_ready_and_has_them_taken_away(tmp_path: Path) -> None:
    with placing(tmp_path) as (cluster, hook, made):
        spare = prepare(cluster, "lab", count=2)
        eventually("the controller is told", lambda: "SpareReady" in told(hook, spare))
        story = phase(cluster, spare, "Ready")
        for machine in story["machines"]:
            order = json.loads((made / f"{machine['name']}.json").read_text())
            assert (order["node"], order["address"], order["cpu"]) == (machine["node"], machine["ip"], 2)
            assert cluster.call("GET", f"/schedule/{machine['task_id']}")[1]["state"] == "Confirmed"

        done = cluster.call("POST", f"/spare/{spare}/release", {"reason": "upgrade 1.32 is done"})
        assert done[0] == 200
        eventually("the controller is told", lambda: "SpareReleased" in told(hook, spare))
        assert phase(cluster, spare, "Released")["message"] == "upgrade 1.32 is done"
        assert list(made.iterdir()) == []
        assert cluster.items("instances") == []
        assert [step["phase"] for step in cluster.call("GET", f"/spare/{spare}")[1]["history"]] == [
            "Preparing",
            "Ready",
            "Releasing",
            "Released",
        ]


@pytest.mark.req("S4-30", "S4-31")
def test_a_spare_is_ready_only_when_the_agents_of_its_machines_have_joined_and_are_ready(tmp_path: Path) -> None:
    """A real playbook starts the machines, and each is a real agent that joins the cluster over the network."""
    with placing(tmp_path) as (cluster, _, _):
        token = tmp_path / "server0" / "join.token"
        boot = BOOT.format(folder=tmp_path, python=sys.executable, url=cluster.urls[0], token=token)
        (tmp_path / "boot").write_text(boot)
        spare = prepare(cluster, "joining", count=2)

        def machines() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = cluster.call("GET", f"/spare/{spare}")[1]["machines"]
            return found

        try:
            eventually(
                "the machines run and have not joined",
                lambda: [each.get("message") for each in machines()] == ["the machine has not joined"] * 2,
            )
            assert phase(cluster, spare, "Preparing", "Ready")["status"] == "Preparing"
            (tmp_path / "network").touch()
            phase(cluster, spare, "Ready")
            names = {each["name"] for each in machines()}
            ready = {each["meta"]["name"] for each in cluster.items("nodes") if each["status"]["phase"] == "Ready"}
            assert names <= ready
            pids = [int((tmp_path / "vms" / name / "pid").read_text()) for name in names]
            assert cluster.call("POST", f"/spare/{spare}/release", {"reason": "done"})[0] == 200
            phase(cluster, spare, "Released")
            eventually("the machines are switched off", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        finally:
            for file in (tmp_path / "vms").glob("*/pid"):
                with suppress(ProcessLookupError):
                    os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.mark.req("S4-26", "S4-32", "S4-34")
def test_what_goes_wrong_is_undone_and_reported(tmp_path: Path) -> None:
    with placing(tmp_path) as (cluster, hook, _):
        slow, endless, lonely = (prepare(cluster, each) for each in ("slow", "endless", "lonely"))
        brief = prepare(cluster, "rehearsal", release_after_seconds=0.1)
        (server,) = cluster.servers
        eventually("one is being made", lambda: "Creating" in str(cluster.call("GET", f"/spare/{slow}")[1]))
        server.kill()
        server.start()
        cluster.wait_ready()
        huge = prepare(cluster, "rehearsal", size={"cpu": 1024, "memory": 1})
        assert phase(cluster, brief, "Released")["message"] == "100ms are over"
        for spare, why in (
            (endless, "not created within 1s"),
            (lonely, "not ready within 1s: the machine has not joined"),
            (huge, "No available nodes"),
        ):
            assert why in phase(cluster, spare, "Failed")["message"]
            eventually("it is told", lambda spare=spare: "SpareFailed" in told(hook, spare))  # type: ignore[misc]
        failed = cluster.call("GET", f"/spare/{huge}")[1]["machines"][0]["task_id"]
        eventually("so is what found no machine", lambda: told(hook, failed) == ["TaskFailed"])
        assert f"VM request default/{failed} failed" in server.text()
        phase(cluster, slow, "Ready")
        held = [each["spec"]["claim"]["task"] for each in cluster.items("instances")]
        known = {each["task_id"] for each in cluster.call("GET", f"/spare/{slow}")[1]["machines"]}
        assert set(held) <= known, "nothing is held for anybody else"


@pytest.mark.req("S4-28", "S4-35")
def test_a_person_prepares_lists_and_releases_them(tmp_path: Path) -> None:
    with placing(tmp_path) as (cluster, *_):
        words = ("--cpu", "2", "--memory", "1024", "--pool", "general", "--cluster")
        made = cluster.mandor("spare", "prepare", "--count", "2", *words, "rehearsal", "--wait")
        assert made.returncode == 0, made.stderr
        assert "-0 Ready" in made.stderr
        spare = made.stdout.strip()
        listed = cluster.mandor("spare", "list").stdout
        assert spare in listed
        assert "Ready" in listed
        gone = cluster.mandor("spare", "release", spare, "--wait")
        assert gone.stdout == f"spare {spare} is released\n", gone.stderr
        assert cluster.items("instances") == []

        failed = cluster.mandor("spare", "prepare", *words, "endless", "--wait")
        assert failed.returncode == 1
        assert "not created within 1s" in failed.stderr
        wrong = cluster.mandor("spare", "prepare", *words, "rehersal")
        assert wrong.returncode != 0
        assert "rehearsal" in wrong.stderr, "it says what was meant"
