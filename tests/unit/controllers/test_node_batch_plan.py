"""The plan for a batch that runs once on every matching node, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from mandor.controllers.draft import Draft
from mandor.controllers.garbage_plan import Keep, finished_instances
from mandor.controllers.replicas import ClusterView
from mandor.controllers.workload_plan import WorkloadInputs, plan
from mandor.lib.steps import at_once
from mandor.model.instance import Instance, daemon_name
from mandor.model.meta import InvalidField
from mandor.model.node import Node, NodePhase
from mandor.model.phase import Phase
from mandor.model.workload import Release, Workload, WorkloadStatus
from mandor.placement.daemon_nodes import DaemonNodes
from mandor.store.base import Put
from tests.scenarios.make import NOW, make_instance, make_node, make_stored_release, make_workload
from tests.unit.controllers.test_service_plan import words

NODES = (make_node("n1"), make_node("n2"), make_node("n3"))
DOWN = make_node("n3", phase=NodePhase.DOWN)


def make_batch(**fields: Any) -> Workload:
    keys = ("parallelism", "retries", "deadline")
    own = {key: fields.pop(key) for key in keys if key in fields}
    return make_workload(type="batch", batch={"per_node": True, **own}, **fields)


def on(node: str, phase: Phase = Phase.RUNNING, **fields: Any) -> Instance:
    made = make_instance(0, phase, node="" if phase is Phase.PENDING else node, **fields)
    meta = replace(made.meta, name=daemon_name("web", "main", node), uid=f"uid-{node}")
    return made.changed(meta=meta, spec=replace(made.spec, pin=node))


def done(node: str, **fields: Any) -> Instance:
    return on(node, Phase.SUCCEEDED, **fields)


def failed(node: str, **fields: Any) -> Instance:
    return on(node, Phase.FAILED, **{"since": 0.0, "exit_code": 1, "reason": "Error", **fields})


def run(workload: Workload, instances: Sequence[Instance], nodes: Sequence[Node] = NODES, now: float = NOW) -> Draft:
    def site(release: Release, group: str) -> DaemonNodes:
        return DaemonNodes.of(release.spec.groups[group], nodes)

    ready = frozenset(node.meta.name for node in nodes)
    return plan(
        WorkloadInputs(workload, [make_stored_release(workload)], instances), ClusterView(now, ready, site=site)
    )


def status_of(draft: Draft) -> WorkloadStatus:
    found = [each.value for each in draft.writes if isinstance(each, Put) and isinstance(each.value, Workload)]
    return found[0].status


CASES: list[tuple[str, dict[str, Any], list[Instance], Sequence[Node], list[str]]] = [
    (
        "all nodes run it at the same time",
        {},
        [],
        NODES,
        ["create web-n1 of web.1", "create web-n2 of web.1", "create web-n3 of web.1"],
    ),
    ("`parallelism` limits the nodes at a time", {"parallelism": 2}, [on("n2")], NODES, ["create web-n1 of web.1"]),
    ("a node that is down is left out", {}, [on("n1"), on("n2")], (*NODES[:2], DOWN), []),
    ("a node that has finished is left alone", {}, [done("n1"), done("n2"), done("n3")], NODES, []),
    (
        "a node that joins runs it, too",
        {},
        [done("n1"), done("n2"), done("n3")],
        (*NODES, make_node("n4")),
        ["create web-n4 of web.1"],
    ),
    (
        "the record of a removed node goes",
        {},
        [done("n1"), done("n2"), done("n3")],
        NODES[:2],
        ["delete web-n3"],
    ),
    (
        "a new release runs on all nodes again",
        {},
        [done("n1", release="web.0"), on("n2", release="web.0"), done("n3")],
        NODES,
        ["stop web-n2: updated to web.1", "replace web-n1 of web.1"],
    ),
    (
        "a failed one is tried again on its node",
        {},
        [failed("n1"), on("n2"), on("n3")],
        NODES,
        ["replace web-n1 of web.1 attempt 1 avoid "],
    ),
    (
        "one without retries left stays failed and stops no other",
        {"retries": 1},
        [failed("n1", attempt=1), on("n2"), on("n3")],
        NODES,
        [],
    ),
    (
        "a lost one waits for its node",
        {},
        [on("n1"), on("n2"), on("n3", Phase.LOST)],
        (*NODES[:2], DOWN),
        [],
    ),
    (
        "one that a drain has stopped runs again later",
        {},
        [on("n1"), on("n2"), on("n3", Phase.STOPPED, stop="n3 is drained")],
        NODES,
        ["replace web-n3 of web.1"],
    ),
    (
        "it is stopped on a node that no longer matches",
        {"where": [{"rule": "node != n3"}]},
        [done("n1"), on("n2"), on("n3")],
        NODES,
        ["stop web-n3: node n3 no longer matches"],
    ),
    (
        "a node that has finished keeps its record when it no longer matches",
        {"where": [{"rule": "node != n3"}]},
        [done("n1"), done("n2"), done("n3")],
        NODES,
        [],
    ),
]


@pytest.mark.req("S2-16")
@pytest.mark.parametrize(("case", "fields", "instances", "nodes", "writes"), CASES, ids=[case[0] for case in CASES])
def test_the_writes(
    case: str, fields: dict[str, Any], instances: list[Instance], nodes: Sequence[Node], writes: list[str]
) -> None:
    assert words(run(make_batch(**fields), instances, nodes)) == writes


def test_the_counts_are_of_nodes_and_finish_together() -> None:
    halfway = status_of(run(make_batch(), [done("n1"), on("n2"), on("n3", Phase.PENDING)]))
    assert (halfway.phase, halfway.succeeded, halfway.wanted) == ("Running", 1, 3)
    over = run(make_batch(), [done("n1"), done("n2"), done("n3")])
    status = status_of(over)
    assert (status.phase, status.succeeded, status.wanted) == ("Succeeded", 3, 3)
    assert [(note.reason, note.message) for note in over.notes] == [("Succeeded", "finished on 3 of 3 nodes")]


def test_a_node_that_went_down_after_it_had_finished_still_counts() -> None:
    status = status_of(run(make_batch(), [done("n1"), done("n2"), done("n3")], (*NODES[:2], DOWN)))
    assert (status.phase, status.succeeded, status.wanted) == ("Succeeded", 3, 3)


def test_a_finished_batch_continues_when_a_node_joins() -> None:
    before = WorkloadStatus(phase="Succeeded", release="web.1", wanted=3, succeeded=3)
    draft = run(make_batch().changed(status=before), [done("n1"), done("n2"), done("n3")], (*NODES, make_node("n4")))
    status = status_of(draft)
    assert (status.phase, status.succeeded, status.wanted) == ("Pending", 3, 4)


def test_it_has_failed_once_all_nodes_have_ended_and_names_those_that_failed() -> None:
    going = run(make_batch(retries=0), [failed("n1"), done("n2"), on("n3")])
    assert status_of(going).phase == "Running"
    status = status_of(run(make_batch(retries=0), [failed("n1"), done("n2"), done("n3")]))
    assert (status.phase, status.succeeded, status.failed, status.wanted) == ("Failed", 2, 1, 3)
    assert status.message == "failed on 1 of 3 nodes: n1 (Error, exit code 1)"


def test_without_a_matching_node_it_waits_and_says_so() -> None:
    draft = run(make_batch(where=[{"rule": "disk == ssd"}]), [])
    assert words(draft) == []
    assert (status_of(draft).phase, status_of(draft).wanted) == ("Pending", 0)
    assert status_of(draft).message.startswith("no node matches: 3 not `disk == ssd`")
    assert [note.reason for note in draft.notes] == ["NoNodeMatches"]


def run_of_schedule(**fields: Any) -> Workload:
    made = make_batch(**fields)
    return made.changed(spec=replace(made.spec, run_of="nightly"))


def test_a_run_of_a_schedule_ends_once_and_new_nodes_join_the_next_one() -> None:
    over = WorkloadStatus(phase="Succeeded", release="web.1", wanted=3, succeeded=3)
    workload = run_of_schedule().changed(status=over)
    assert words(run(workload, [done("n1"), done("n2"), done("n3")], (*NODES, make_node("n4")))) == []
    empty = status_of(run(run_of_schedule(where=[{"rule": "disk == ssd"}]), []))
    assert (empty.phase, empty.message) == ("Succeeded", "no node matches")


def test_after_the_deadline_the_rest_is_stopped_and_joining_nodes_run_nothing() -> None:
    workload = make_batch(deadline="1m")
    assert run(workload, [on("n1"), done("n2"), done("n3")], now=NOW + 59).again_seconds == pytest.approx(1)
    late = run(workload, [on("n1"), done("n2"), done("n3")], now=NOW + 60)
    assert words(late) == ["stop web-n1: the batch failed"]
    assert status_of(late).message == "finished on 2 of 3 nodes within its deadline of 1m"
    over = WorkloadStatus(phase="Succeeded", release="web.1", wanted=3, succeeded=3)
    calm = run(workload.changed(status=over), [done("n1"), done("n2"), done("n3")], (*NODES, make_node("n4")), NOW + 90)
    assert words(calm) == []


def test_the_records_of_finished_nodes_are_not_garbage() -> None:
    over = WorkloadStatus(phase="Succeeded", release="web.1", wanted=1, succeeded=1)
    keep, old = Keep(finished_most=0, finished_seconds=0), done("n1", since=0.0)
    one = {("default", "web"): make_batch().changed(status=over)}
    assert at_once(finished_instances([old], one, keep, NOW)) == []
    run_over = {("default", "web"): run_of_schedule().changed(status=over)}
    assert at_once(finished_instances([old], run_over, keep, NOW)) == [old]


def test_a_batch_that_becomes_one_on_every_node_stops_its_other_instances() -> None:
    draft = run(make_batch(), [make_instance(0)], NODES[:1])
    assert words(draft) == ["stop web-0: the workload runs once on every node now", "create web-n1 of web.1"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch": {"per_node": True, "completions": 3}}, "completes once on every matching node"),
        ({"batch": {"per_node": True, "indexed": True}}, "has no indices"),
        ({"batch": {"per_node": True}, "replicas": 3}, "a batch with `per_node` cannot set `replicas`"),
        ({"batch": {"per_node": True}, "gang": {}}, "a batch with `per_node` cannot be a gang"),
    ],
)
def test_settings_that_contradict_one_per_node_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidField, ValueError), match=message):
        make_workload(type="batch", **fields)
