"""`mandor explain` and `mandor plan`: what people read, and how the commands end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mandor.model.phase import Phase
from mandor.model.workload import make_release
from tests.scenarios.make import GI, make_instance, make_node, make_workload
from tests.unit.cli.conftest import LiveApi, Mandor

WEB = "name: api\ncommand: [run]\nreplicas: 2\nresources: {cpu: 1, memory: 1Gi}\n"


@pytest.fixture
def filled(api: LiveApi) -> LiveApi:
    """web-0 runs on n1, web-1 waits; n2 is cordoned."""
    workload = make_workload("web", replicas=2, version=0, cpu="1", memory="3Gi")
    api.put(
        make_node("n1", memory=4 * GI),
        make_node("n2", memory=4 * GI, cordoned=True),
        workload,
        make_release(workload, 1),
        make_instance(0, version=0),
        make_instance(1, Phase.PENDING, version=0),
    )
    return api


@pytest.mark.req("S0-35")
def test_a_pending_instance_is_explained_with_the_smallest_change(filled: LiveApi, mandor: Mandor) -> None:
    told = mandor("explain", "web-1")
    assert told.code == 0
    text = "0/2 nodes fit: 1 NodeUnschedulable (1 cordoned), 1 NodeResourcesFit (short of 2Gi memory)"
    assert told.out.splitlines()[0] == f"web-1 (Pending): {text}"
    assert "smallest change that would let it run: uncordon n2 → n2" in told.out
    assert "or: request 1Gi memory instead of 3Gi (2Gi less) → n1" in told.out
    assert "FITS" not in told.out
    assert "n2    no    NodeUnschedulable  cordoned" in mandor("explain", "instance", "web-1", "--nodes").out


def test_a_placed_instance_and_a_workload_are_explained(filled: LiveApi, mandor: Mandor) -> None:
    told = mandor("explain", "web-0")
    assert told.out.startswith("web-0 (Running): placed on n1, the only node that fits")
    assert "NodeResourcesFit" in told.out
    told = mandor("explain", "web")
    assert told.out.startswith("workload web: 1 placed on 1 node, 1 pending\n  1 on n1\n")
    assert "web-1 (Pending)" in told.out
    assert json.loads(mandor("explain", "workload/web", "-o", "json").out)["pending"] == 1


def test_an_unknown_name_gets_a_similar_one_as_a_hint(filled: LiveApi, mandor: Mandor) -> None:
    told = mandor("explain", "wbe-1")
    assert told.code == 1
    assert "no instance or workload wbe-1" in told.err
    assert "did you mean `web-1`" in told.err
    assert mandor("explain", "node", "n1").code == 2
    assert mandor("explain").code == 2


def test_a_plan_is_reported_and_its_exit_status_shows_whether_everything_fits(
    filled: LiveApi, mandor: Mandor, tmp_path: Path
) -> None:
    (tmp_path / "api.yaml").write_text(WEB)
    told = mandor("plan", "-f", str(tmp_path / "api.yaml"))
    assert told.code == 1
    assert "workload default/api would be created" in told.out
    assert "INSTANCE  NODE\napi-0     n1" in told.out
    assert "ALREADY PENDING" in told.out
    assert "1 would be placed; 1 would be pending; nothing was changed" in told.out
    (tmp_path / "api.yaml").write_text(WEB.replace("replicas: 2", "replicas: 1"))
    told = mandor("plan", "-f", str(tmp_path / "api.yaml"), "-o", "json")
    assert told.code == 0
    assert json.loads(told.out)["fits"] is True
    assert mandor("get", "workloads", "-o", "name").out == "workload/web\n"


def test_a_drain_a_loss_and_another_profile_are_planned(filled: LiveApi, mandor: Mandor, tmp_path: Path) -> None:
    told = mandor("plan", "drain", "n1")
    assert told.code == 1
    assert "web-0" in told.out
    assert mandor("plan", "without", "n1").code == 1
    (tmp_path / "p.yaml").write_text("profiles: [{}]\n")
    told = mandor("plan", "--profile", str(tmp_path / "p.yaml"))
    assert "fullest node (percent)" in told.out
    (tmp_path / "p.yaml").write_text("profiles:\n- plugins: {score: {enabled: [{name: Nope}]}}\n")
    told = mandor("plan", "--profile", str(tmp_path / "p.yaml"))
    assert told.code == 1
    assert "p.yaml:2" in told.err


def test_many_placements_are_counted_by_node(api: LiveApi, mandor: Mandor, tmp_path: Path) -> None:
    api.put(make_node("n1", cpu=64), make_node("n2", cpu=64))
    (tmp_path / "many.yaml").write_text("name: many\ncommand: [run]\nreplicas: 60\nresources: {cpu: 100m}\n")
    told = mandor("plan", "-f", str(tmp_path / "many.yaml"))
    assert told.code == 0
    assert "many      60      0        n1: 30, n2: 30" in told.out


def test_a_plan_of_a_reservation_shows_what_it_would_hold_where_and_what_is_missing(
    filled: LiveApi, mandor: Mandor, tmp_path: Path
) -> None:
    text = "kind: reservation\nname: kept\ncount: 2\nresources: {cpu: 1, memory: 1Gi}\nend: 2099-01-01T00:00:00Z\n"
    (tmp_path / "kept.yaml").write_text(text)
    told = mandor("plan", "-f", str(tmp_path / "kept.yaml"))
    assert told.code == 0, told
    assert "reservation default/kept would be created" in told.out
    assert "RESERVATION  SLOTS  SIZE               NODES\nkept         2/2    cpu 1, memory 1Gi  n1: 2\n" in told.out
    assert "kept: 2 of 2 places are held until 2099-01-01T00:00:00Z; 1 of them are still in use" in told.out
    (tmp_path / "kept.yaml").write_text(text.replace("memory: 1Gi", "memory: 8Gi"))
    told = mandor("plan", "-f", str(tmp_path / "kept.yaml"))
    assert told.code == 1
    assert "kept         0/2" in told.out
    assert "2 more do not fit: no node that may hold it has cpu 1, memory 8Gi left" in told.out
    assert mandor("get", "reservations", "-o", "name").out == ""


def test_what_is_no_plan_is_wrong_usage(filled: LiveApi, mandor: Mandor) -> None:
    assert mandor("plan").code == 2
    assert mandor("plan", "drain").code == 2
    told = mandor("plan", "drian", "n1")
    assert told.code == 2
    assert "did you mean `drain`" in told.err
    assert mandor("plan", "drain", "n9").code == 1
