"""`mandor get`, `describe`, `events`, and small changes, against a real API."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from mandor.api.http.server import open_socket
from mandor.cli.commands import get
from mandor.cli.kinds import find_kind
from mandor.client.sync import Client
from mandor.errors import Unavailable
from mandor.lib.quantity import Size
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus, StopOrder, TaskStatus
from mandor.model.manifest import load_manifests
from mandor.model.meta import Meta
from mandor.model.node import Capabilities, Node, NodePhase, NodeSpec, NodeStatus, Taint
from mandor.model.phase import Phase
from mandor.model.record import Event, EventSpec
from mandor.model.resources import Resources
from mandor.model.rollout import Rollout
from mandor.model.volume import Volume, VolumeSpec, VolumeStatus
from mandor.model.workload import Workload, WorkloadStatus, make_release
from tests.unit.cli.conftest import LiveApi, Mandor
from tests.unit.cli.test_front_door import completed

EXAMPLES = Path(__file__).parents[3] / "examples"


def node(name: str, **labels: str) -> Node:
    return Node(
        meta=Meta(name=name, labels=labels),
        spec=NodeSpec(taints=(Taint("dedicated", "db"),)),
        status=NodeStatus(
            phase=NodePhase.READY,
            capacity=Resources(4000, 8 << 30),
            engines={"process": Capabilities(version="1"), "docker": Capabilities(up=False, message="no socket")},
            facts={"os": "linux"},
        ),
    )


def workload(text: str, **status: object) -> Workload:
    (document,) = load_manifests(text)
    assert isinstance(document.object, Workload)
    return document.object.changed(status=WorkloadStatus(phase="Running", **status))  # type: ignore[arg-type]


def instance(name: str, phase: Phase = Phase.RUNNING, *, on: str = "n1", **status: object) -> Instance:
    return Instance(
        meta=Meta(name=name, namespace="default"),
        spec=InstanceSpec(workload=name.rpartition("-")[0], release="web.1", index=0, node=on),
        status=InstanceStatus(phase=phase, **status),  # type: ignore[arg-type]
    )


def event(name: str, about: str, message: str, *, at: float = 0.0, count: int = 1, namespace: str = "default") -> Event:
    spec = EventSpec(about=about, reason="Started", message=message, source="agent n1", last_at=at, count=count)
    return Event(meta=Meta(name=name, namespace=namespace), spec=spec)


# get


@pytest.mark.req("S2-10", "S2-19")
def test_a_table_has_aligned_columns(api: LiveApi, mandor: Mandor) -> None:
    api.put(node("n1", zone="a"), node("a-node-with-a-long-name"))
    told = mandor("get", "nodes")
    head, *rows = told.out.splitlines()
    assert head.split() == ["NAME", "PHASE", "POOL", "ENGINES", "CPU", "MEMORY", "AGE"]
    assert [row.split()[:2] for row in rows] == [["a-node-with-a-long-name", "Ready"], ["n1", "Ready"]]
    assert all(row.index("Ready") == head.index("PHASE") for row in rows)
    assert "docker (down),process" in rows[0]
    assert "\x1b" not in told.out


def test_wide_tables_report_more(api: LiveApi, mandor: Mandor) -> None:
    api.put(node("n1", zone="a"))
    assert "zone=a" in mandor("get", "no", "-o", "wide").out
    assert "zone=a" not in mandor("get", "no").out


def test_data_has_a_stable_shape(api: LiveApi, mandor: Mandor) -> None:
    api.put(node("n1"), node("n2"))
    one = mandor("get", "node", "n1", "-o", "json").data
    assert list(one) == ["kind", "meta", "spec", "status"]
    assert one["status"]["phase"] == "Ready"
    many = mandor("get", "nodes", "-o", "json").data
    assert list(many) == ["items"]
    assert [item["meta"]["name"] for item in many["items"]] == ["n1", "n2"]
    named = mandor("get", "nodes", "n2", "n1", "-o", "json").data
    assert [item["meta"]["name"] for item in named["items"]] == ["n2", "n1"]
    assert mandor("get", "nodes", "-o", "name").out == "node/n1\nnode/n2\n"
    assert mandor("get", "nodes", "-o", "yaml").out.startswith("items:\n- kind: node\n  meta:\n    name: n1\n")


def test_an_empty_list_is_reported_on_stderr_and_is_empty_data(api: LiveApi, mandor: Mandor) -> None:
    told = mandor("get", "instances")
    assert (told.code, told.out, told.err) == (0, "", "no instances found\n")
    assert mandor("get", "instances", "-o", "json").data == {"items": []}


def test_labels_and_nodes_select(api: LiveApi, mandor: Mandor) -> None:
    api.put(node("n1", zone="a"), node("n2", zone="b"), instance("web-0"), instance("web-1", on="n2"))
    assert mandor("get", "nodes", "-l", "zone=b", "-o", "name").out == "node/n2\n"
    assert mandor("get", "instances", "--node", "n2", "-o", "name").out == "instance/web-1\n"
    assert mandor("get", "node", "n1", "-l", "zone=a").code == 2
    told = mandor("get", "nodes", "-l", "=,")
    assert told.code == 1
    assert told.err.startswith("error: ")


def test_a_name_that_is_not_there_gets_a_near_one(api: LiveApi, mandor: Mandor) -> None:
    api.put(node("worker-1"))
    told = mandor("get", "node", "wroker-1")
    assert told.code == 1
    assert "error: there is no node called wroker-1\nhint: did you mean `worker-1`?\n" in told.err


def test_more_than_one_page_is_read_to_its_end(api: LiveApi, mandor: Mandor) -> None:
    api.put(*(node(f"n{number:04}") for number in range(1203)))
    assert len(mandor("get", "nodes", "-o", "name").out.splitlines()) == 1203


def test_every_kind_can_be_listed(api: LiveApi, mandor: Mandor) -> None:
    from mandor.cli.kinds import KINDS

    api.put(node("n1"), instance("web-0"), workload("name: web\nimage: x"), event("e1", "node n1", "x", namespace=""))
    for kind in KINDS:
        told = mandor("get", kind.plural)
        assert told.code == 0, told.err
    assert mandor("get", "clusters").out.splitlines()[1].split()[:3] == ["cluster", "c1", "1"]


def test_escape_sequences_of_a_program_do_not_reach_the_terminal(api: LiveApi, mandor: Mandor) -> None:
    api.put(event("e1", "instance default/web-0", "evil \x1b[2J text\nsecond"))
    told = mandor("get", "events")
    assert "\x1b" not in told.out
    assert "evil ?[2J text second" in told.out


def test_a_stopping_instance_shows_why(api: LiveApi, mandor: Mandor) -> None:
    stopping = instance("web-0")
    stopping = stopping.changed(spec=msgspec.structs.replace(stopping.spec, stop=StopOrder("scaled down")))
    api.put(stopping)
    assert "stopping: scaled down" in mandor("get", "instances").out


def test_watch_shows_what_is_there_and_then_every_change(api: LiveApi) -> None:
    api.put(node("n1"))
    command = [sys.executable, "-m", "mandor.cli.main", "get", "nodes", "-o", "json", "--watch"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert (first["before"], first["after"]["meta"]["name"]) == (None, "n1")
        api.put(node("n2"))
        assert json.loads(process.stdout.readline())["after"]["meta"]["name"] == "n2"
        api.put(node("n1", zone="b"))
        changed = json.loads(process.stdout.readline())
        assert changed["before"]["meta"].get("labels") is None
        assert changed["after"]["meta"]["labels"] == {"zone": "b"}
        process.send_signal(2)  # as Ctrl-C does
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert process.stderr.read().strip() == ""
    finally:
        process.kill()
        process.communicate()


def test_a_reader_that_has_enough_is_no_error(api: LiveApi) -> None:
    api.put(*(node(f"n{number:04}") for number in range(2000)))
    command = f"{sys.executable} -m mandor.cli.main get nodes -o json | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")


def test_a_watch_goes_on_when_its_server_was_away(api: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(api.url.rpartition(":")[2])
    monkeypatch.setattr("tests.api.conftest.open_socket", lambda host, _: open_socket(host, port))
    api.put(node("n1"))
    seen = get.changes(Client([api.url]), find_kind("node"), {})
    assert next(seen)["after"]["meta"]["name"] == "n1"

    def come_back() -> None:
        api.restart(away_seconds=2)
        api.wait_ready()
        api.put(node("n2"))

    thread = threading.Thread(target=come_back)
    thread.start()
    assert next(seen)["after"]["meta"]["name"] == "n2"
    thread.join()


def test_a_watch_gives_up_when_no_server_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get, "PATIENCE_SECONDS", 0.5)
    api = LiveApi(tokens_required=False)
    api.put(node("n1"))
    seen = get.changes(Client([api.url]), find_kind("node"), {})
    assert next(seen)["after"]["meta"]["name"] == "n1"
    threading.Timer(0.2, api.stop).start()
    with pytest.raises(Unavailable):
        next(seen)


def test_names_of_the_cluster_are_completed(
    api: LiveApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api.put(node("n1"), node("m1"), workload("name: web\nimage: x"), instance("web-0"))
    assert completed("mandor get nodes ", monkeypatch, capsys) == ["m1", "n1"]
    assert completed("mandor cordon n", monkeypatch, capsys) == ["n1"]
    assert completed("mandor scale ", monkeypatch, capsys) == ["web"]
    assert completed("mandor logs w", monkeypatch, capsys) == ["web-0"]
    assert completed("mandor logs -n team w", monkeypatch, capsys) == []


# describe


def test_a_workload_reports_its_story(api: LiveApi, mandor: Mandor) -> None:
    text = (EXAMPLES / "probes.yaml").read_text().replace("name: files", "name: web")
    api.put(
        workload(text, release="web.1", wanted=2, ready=1, message="web-1: no node fits"),
        instance("web-0", ready=True),
        instance("web-1", Phase.PENDING, on="", reason="Unschedulable", message="no node fits"),
        event("e1", "workload default/web", "rolling out web.1, replacing web.0", at=time.time() - 120),
        event("e2", "workload default/other", "not about it"),
        event("e3", "instance default/web-1", "no node has room", at=time.time() - 60),
    )
    told = mandor("describe", "workload", "web")
    assert told.code == 0, told.err
    lines = told.out.splitlines()
    assert lines[0] == "workload default/web: Running, 1 of 2 ready"
    assert "web-1: waiting for a node: no node fits" in told.out
    assert "http / every 5s" in told.out
    assert "instances: 2" in told.out
    assert any(line.split()[:2] == ["web-0", "Running"] for line in lines)
    assert "2m ago" in told.out
    assert "not about it" not in told.out
    assert lines[-1].endswith("web-1: no node has room"), "what happens to its instances is part of it"


def test_the_same_thing_again_and_again_is_one_line_and_a_first_release_is_no_roll_out(
    api: LiveApi, mandor: Mandor
) -> None:
    rollout = Rollout(release="web.1", target="web.1", message="0 of 1 updated to web.1")
    api.put(
        workload("name: web\nimage: x", release="web.1", rollout=rollout),
        event("e1", "workload default/web", "restart 1", at=time.time() - 120),
        event("e2", "workload default/web", "restart 2", at=time.time() - 60, count=3),
    )
    told = mandor("describe", "workload", "web").out
    assert "roll-out:" not in told
    assert told.splitlines()[-1].split()[1:] == ["ago", "Started", "x4", "restart", "2"]


def test_an_instance_reports_its_story(api: LiveApi, mandor: Mandor) -> None:
    api.put(
        instance(
            "web-0",
            Phase.RUNNING,
            restarts=3,
            exit_code=137,
            reason="OOMKilled",
            message="it used more than 256Mi",
            tasks=(TaskStatus(name="app", phase=Phase.RUNNING, restarts=3, reason="OOMKilled"),),
        ),
        event("e1", "instance default/web-0", "restarted", count=3),
    )
    told = mandor("describe", "inst", "web-0")
    assert told.out.startswith("instance default/web-0: Running, not ready, on n1\n")
    assert "killed for using too much memory, 3 times: it used more than 256Mi" in told.out
    assert "next step:  raise `resources.memory`" in told.out
    assert "137" in told.out
    assert "Started x3" in told.out


@pytest.mark.req("S3-24")
def test_what_an_instance_was_placed_without_is_shown(api: LiveApi, mandor: Mandor) -> None:
    placed = instance("web-0")
    api.put(placed.changed(spec=msgspec.structs.replace(placed.spec, relaxed=("zone == a", "disk == ssd"))))
    assert "relaxed rules:  zone == a; disk == ssd" in mandor("describe", "instance", "web-0").out
    head, row = mandor("get", "instances", "-o", "wide").out.splitlines()
    assert row[head.index("RELAXED") :].startswith("zone == a; disk == ssd")


def test_a_node_reports_its_story(api: LiveApi, mandor: Mandor) -> None:
    api.put(node("n1"), instance("web-0"), event("e1", "node n1", "joined", namespace=""))
    told = mandor("describe", "node", "n1")
    assert told.out.startswith("node n1: Ready\n")
    assert "dedicated=db:NoSchedule" in told.out
    assert "docker (down: no socket)" in told.out
    assert "cpu 4, memory 8.0GiB" in told.out
    assert "instances: 1" in told.out
    assert "joined" in told.out


def test_a_volume_shows_its_node_its_users_and_its_reclaim_policy(api: LiveApi, mandor: Mandor) -> None:
    status = VolumeStatus(phase="Bound", node="n1", path="/data/x", workload="web", used_by=("web-0", "web-1"))
    spec = VolumeSpec(size=Size(10 << 30), pool="ssd")
    api.put(Volume(meta=Meta(name="data-web", namespace="default"), spec=spec, status=status))
    assert mandor("get", "vol").out.splitlines()[1].split()[:6] == [
        "data-web",
        "Bound",
        "n1",
        "10Gi",
        "keep",
        "web-0,web-1",
    ]
    told = mandor("describe", "volume", "data-web").out
    assert "volume default/data-web: Bound" in told
    assert "workload:   web; the volume is kept when the workload is deleted" in told
    assert "used by:    web-0, web-1" in told
    assert "may be on:  pool ssd" in told
    assert "on loss:    waits for its node" in told


def test_a_release_and_its_workload_show_the_digests_that_their_images_are_pinned_to(
    api: LiveApi, mandor: Mandor
) -> None:
    text = """
name: web
groups:
  main:
    tasks:
      front: {image: "nginx:1.27"}
      cache: {image: "redis:7", role: sidecar}
    alternatives:
      - tasks: {front: {image: "nginx:alpine"}}
"""
    made = workload(text, release="web.1")
    release = make_release(made, 1)
    digest = "sha256:" + "ab" * 32
    status = msgspec.structs.replace(release.status, images={"nginx:1.27": digest})
    api.put(made, release.changed(status=status))
    told = mandor("describe", "release", "web.1").out
    assert f"images:      nginx:1.27 = {digest}" in told
    assert "not pinned:  nginx:alpine, redis:7" in told
    assert f"nginx:1.27 = {digest}" in mandor("describe", "workload", "web").out


def test_other_kinds_show_their_spec(api: LiveApi, mandor: Mandor) -> None:
    made = workload("name: web\nimage: x")
    api.put(make_release(made, 1))
    told = mandor("describe", "release", "web.1")
    assert told.code == 0
    assert "sequence: 1" in told.out


# events


def test_events_come_in_order_and_can_be_about_one_object(api: LiveApi, mandor: Mandor) -> None:
    now = time.time()
    api.put(
        event("b", "instance default/web-0", "second", at=now - 5),
        event("a", "instance default/web-1", "third", at=now - 1),
        event("c", "node n1", "first", at=now - 9, namespace=""),
        event("d", "instance team/web-0", "elsewhere", at=now, namespace="team"),
    )
    told = mandor("events")
    assert [line.split()[-1] for line in told.out.splitlines()[1:]] == ["first", "second", "third"]
    assert mandor("events", "--for", "instance/web-0", "-o", "json").data["items"][0]["spec"]["message"] == "second"
    assert "first" in mandor("events", "--for", "node/n1").out
    assert [line.split()[-1] for line in mandor("events", "--last", "1").out.splitlines()[1:]] == ["third"]
    assert "elsewhere" in mandor("events", "-A").out


@pytest.mark.req("S2-10")
def test_changes_are_audited_and_can_be_read_back(api: LiveApi, mandor: Mandor, tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text("name: web\nimage: x\n")
    mandor("apply", "-f", "web.yaml")
    told = mandor("events", "--audit")
    assert "user:local" in told.out
    assert "workload default/web" in told.out


# Small changes.


@pytest.mark.req("S2-11", "S2-18")
def test_scale_sets_the_count(api: LiveApi, mandor: Mandor) -> None:
    api.put(workload("name: web\nimage: x\nreplicas: 2"))
    assert mandor("scale", "web", "5").out == "workload default/web scaled from 2 to 5\n"
    assert api.get("workload", "web").spec.groups["main"].replicas == 5
    assert mandor("scale", "wbe", "5").err.endswith("hint: did you mean `web`?\ncode: not_found\n")
    assert mandor("scale", "web", "100001").code == 2


def test_scale_asks_for_a_group_where_there_are_several(api: LiveApi, mandor: Mandor) -> None:
    api.put(workload((EXAMPLES / "groups.yaml").read_text()))
    told = mandor("scale", "shop", "4")
    assert told.code == 1
    assert "select one with --group: front, back" in told.err
    assert mandor("scale", "shop", "4", "--group", "frnt").err.endswith("hint: did you mean `front`?\ncode: invalid\n")
    assert mandor("scale", "shop", "4", "--group", "front").code == 0
    groups = api.get("workload", "shop").spec.groups
    assert (groups["front"].replicas, groups["back"].replicas) == (4, 1)


def test_a_batch_is_not_scaled(api: LiveApi, mandor: Mandor) -> None:
    api.put(workload((EXAMPLES / "batch.yaml").read_text()))
    assert "is a batch" in mandor("scale", "squares", "4").err


def test_restart_asks_for_new_instances(api: LiveApi, mandor: Mandor) -> None:
    api.put(workload("name: web\nimage: x"))
    assert mandor("restart", "web").code == 0
    assert mandor("restart", "web").out == "workload default/web is restarting\n"
    assert api.get("workload", "web").spec.restarted == 2


def test_cordon_and_uncordon(api: LiveApi, mandor: Mandor) -> None:
    api.put(node("n1"), node("n2"))
    assert mandor("cordon", "n1", "n2").out == "node n1 cordoned\nnode n2 cordoned\n"
    assert api.get("node", "n1", "").spec.cordoned
    assert "Ready,cordoned" in mandor("get", "nodes").out
    assert mandor("cordon", "n1").out == "node n1 is already cordoned\n"
    assert mandor("uncordon", "n1").out == "node n1 uncordoned\n"
    assert not api.get("node", "n1", "").spec.cordoned
    assert mandor("cordon", "n1", "n9").code == 1
    assert not api.get("node", "n1", "").spec.cordoned, "nothing is done if one name is wrong"


# Waiting.


def test_wait_returns_when_everything_is_ready(api: LiveApi, mandor: Mandor, tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text("name: web\nimage: x\nreplicas: 0\n")
    mandor("apply", "-f", "web.yaml")
    stored = api.get("workload", "web")
    api.put(make_release(stored, 1), stored.changed(status=WorkloadStatus(phase="Running", release="web.1")))
    told = mandor("apply", "-f", "web.yaml", "--wait", "--timeout", "30s")
    assert told.code == 0, told.err
    assert "workload default/web is ready" in told.err


def test_wait_does_not_take_an_old_status_for_the_new_one(api: LiveApi, mandor: Mandor, tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text("name: web\nimage: x\nreplicas: 0\n")
    mandor("apply", "-f", "web.yaml")
    stored = api.get("workload", "web")
    api.put(make_release(stored, 1), stored.changed(status=WorkloadStatus(phase="Running", release="web.1")))
    (tmp_path / "web.yaml").write_text("name: web\nimage: y\nreplicas: 0\n")
    told = mandor("apply", "-f", "web.yaml", "--wait", "--timeout", "600ms")
    assert told.code == 1
    assert "timed out after 0.6 s: web is not processed by its controller yet" in told.err


def test_wait_reports_what_is_missing_when_it_gives_up(api: LiveApi, mandor: Mandor) -> None:
    made = workload("name: web\nimage: x\nreplicas: 2", release="web.1", wanted=2, ready=1, message="no node fits")
    api.put(made, make_release(made, 1))
    told = mandor("scale", "web", "2", "--wait", "--timeout", "600ms")
    assert told.code == 1
    assert "web is Running, 1 of 2 ready (no node fits)" in told.err


def test_wait_ends_with_a_failed_batch(api: LiveApi, mandor: Mandor, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: job\nimage: x\ntype: batch\n")
    mandor("apply", "-f", "job.yaml")
    stored = api.get("workload", "job")
    api.put(
        make_release(stored, 1),
        stored.changed(status=WorkloadStatus(phase="Failed", release="job.1", message="job-0 failed 4 times")),
    )
    told = mandor("apply", "-f", "job.yaml", "--wait")
    assert told.code == 1
    assert "error: the workload job failed: job-0 failed 4 times" in told.err


def test_delete_waits_until_no_instance_is_left(api: LiveApi, mandor: Mandor) -> None:
    api.put(workload("name: web\nimage: x"), instance("web-0"))
    told = mandor("delete", "workload", "web", "--wait", "--timeout", "600ms")
    assert told.code == 1
    assert "1 instances of web are left: web-0" in told.err
