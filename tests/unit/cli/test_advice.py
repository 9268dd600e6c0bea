"""What `mandor describe` says of now, and what to do about it."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.cli import advice

Object = dict[str, Any]


def instance(name: str = "web-0", *, namespace: str = "default", spec: Object | None = None, **status: Any) -> Object:
    return {"meta": {"name": name, "namespace": namespace}, "spec": spec or {}, "status": status}


def workload(**rollout: Any) -> Object:
    return {"meta": {"name": "web", "namespace": "default"}, "spec": {}, "status": {"rollout": rollout}}


def node(spec: Object | None = None, **status: Any) -> Object:
    return {"meta": {"name": "n1"}, "spec": spec or {}, "status": status}


CRASHED = instance(phase="Starting", reason="Error", message="ended (exit code 3)", restarts=4)
SAID = "0/2 nodes fit: 2 NodeResourcesFit (short of 1 cpu)"
QUOTA = "0/2 nodes fit: 2 Quota (the quota q is exceeded by 1 instances)"


@pytest.mark.parametrize(
    ("found", "now", "do"),
    [
        (instance(phase="Pending", message=SAID), f"waiting for a node: {SAID}", "mandor explain instance web-0`"),
        (instance(phase="Pending", message=QUOTA, namespace="a"), "quota of its namespace", "mandor get quotas -n a`"),
        (
            instance(phase="Pending", reason="Gated", message="waits for db to be healthy"),
            "waits for db",
            "continues once the gate is removed",
        ),
        (instance(phase="Pending", nominated="n2", message="x"), "room is being made on n2", ""),
        (CRASHED, "restarted 4 times: ended (exit code 3)", "mandor logs web-0`"),
        (
            instance(phase="Starting", reason="OOMKilled", restarts=1),
            "too much memory, once",
            "resources.memory",
        ),
        (instance(phase="Running", ready=False, message="http / answers 503"), "not ready yet: http /", "mandor logs"),
        (instance(phase="Running", ready=True, spec={"relaxed": ["disk == ssd"]}), "without `disk == ssd`", "explain"),
        (instance(phase="Running", ready=True, spec={"stop": {"reason": "Preempted"}}), "stopping: Preempted", ""),
        (instance(phase="Lost", spec={"node": "n1"}), "its node n1 sends no heartbeats", ""),
        (instance(phase="Running", ready=True), "", ""),
    ],
)
def test_an_instance_shows_what_happens_and_what_can_be_done(found: Object, now: str, do: str) -> None:
    told = advice.of_instance(found)
    assert now in told.now
    assert do in told.do
    assert bool(told.now) == bool(now)
    assert bool(told.do) == bool(do)


def test_a_workload_reports_of_the_first_that_is_not_well_and_how_to_go_back() -> None:
    well = instance("web-1", phase="Running", ready=True)
    told = advice.of_workload(workload(release="web.1", phase="Progressing"), [well, CRASHED])
    assert told.now.startswith("web-0: restarted")
    assert "rollout" not in told.do, "there is nothing to go back to"
    later = workload(release="web.2", phase="Progressing", proven=["web.1"])
    assert "mandor rollout abort web`" in advice.of_workload(later, [CRASHED]).do
    assert advice.of_workload(later, [well]) == advice.NOTHING


def test_a_waiting_roll_out_shows_what_it_waits_for() -> None:
    paused = advice.of_workload(workload(release="web.2", phase="Paused", message="by ann"), [])
    assert paused == ("rollout paused: by ann", "continue it with `mandor rollout resume web`")
    failed = advice.of_workload(workload(release="web.2", phase="Failed", message="not one got healthy"), [CRASHED])
    assert failed.now == "rollout failed: not one got healthy"


@pytest.mark.parametrize(
    ("found", "now", "do"),
    [
        (node(phase="Down", reason="silent for 1m"), "no heartbeats from its agent: silent for 1m", "journalctl"),
        (node(phase="Ready", drain={"phase": "Drained"}), "drained", "mandor uncordon n1"),
        (node(phase="Ready", drain={"phase": "Waiting", "waiting": ["3 of web"]}), "waiting: 3 of web", "--force"),
        (node(phase="Ready", drain={"phase": "Draining"}), "are being moved", "--cancel"),
        (node({"cordoned": True}, phase="Ready"), "no new instances", "mandor uncordon n1"),
        (node(phase="Ready", pressure=["memory"]), "short of memory", ""),
        (node(phase="Ready"), "", ""),
    ],
)
def test_a_node_shows_what_happens_and_what_can_be_done(found: Object, now: str, do: str) -> None:
    told = advice.of_node(found)
    assert now in told.now
    assert do in told.do
    assert bool(told.now) == bool(now)


def test_a_pool_that_may_have_no_more_shows_how_it_gets_more() -> None:
    status = {"scaling": {"message": "the pool has its maximum of 3 machines"}}
    pool = {"meta": {"name": "burst"}, "spec": {"autoscale": {"max": 3}}, "status": status}
    assert advice.of_pool(pool) == (
        "instances are waiting: the pool has its maximum of 3 machines",
        "raise `autoscale.max` to allow more machines",
    )
    assert advice.of_pool({"meta": {"name": "plain"}, "spec": {}}) == advice.NOTHING


def test_a_pool_whose_machines_cannot_be_deleted_names_the_command_that_removes_their_records() -> None:
    message = "burst-1 cannot be deleted: connection refused"
    scaling = {"message": message, "machines": [{"id": "burst-1", "phase": "Leaving", "at": 1.0}]}
    pool = {"meta": {"name": "burst"}, "spec": {"autoscale": {"max": 3}}, "status": {"scaling": scaling}}
    now, do = advice.of_pool(pool)
    assert now == message
    assert "`mandor pool forget burst`" in do


def test_a_pool_whose_orders_fail_names_the_settings() -> None:
    trouble = {"small": {"failures": 1, "until": 2.0, "message": "not trusted"}}
    scaling = {"message": "small failed: not trusted", "trouble": trouble}
    pool = {"meta": {"name": "burst"}, "spec": {"autoscale": {"max": 3}}, "status": {"scaling": scaling}}
    now, do = advice.of_pool(pool)
    assert now == "small failed: not trusted"
    assert "`settings`" in do
