"""The plan for a batch, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.controllers.draft import Draft
from mandor.controllers.replicas import ClusterView
from mandor.controllers.workload_plan import WorkloadInputs, plan
from mandor.model.instance import Instance
from mandor.model.phase import Phase
from mandor.model.workload import Workload, WorkloadStatus
from mandor.store.base import Put
from tests.scenarios.make import NOW, make_instance, make_stored_release, make_workload
from tests.unit.controllers.test_service_plan import words


def make_batch(**fields: Any) -> Workload:
    own = {
        key: fields.pop(key)
        for key in ("completions", "parallelism", "retries", "deadline", "indexed")
        if key in fields
    }
    return make_workload(type="batch", batch=own, **fields)


def run(workload: Workload, instances: list[Instance], *, now: float = NOW, ready: bool = True) -> Draft:
    world = ClusterView(now, frozenset({"n1", "n2"}) if ready else frozenset())
    return plan(WorkloadInputs(workload, [make_stored_release(workload)], instances), world)


def status_of(draft: Draft) -> WorkloadStatus | None:
    found = [write.value for write in draft.writes if isinstance(write, Put) and isinstance(write.value, Workload)]
    return found[0].status if found else None


def done(index: int, **fields: Any) -> Instance:
    return make_instance(index, Phase.SUCCEEDED, **fields)


def failed(index: int, **fields: Any) -> Instance:
    return make_instance(index, Phase.FAILED, **{"since": 0.0, "exit_code": 1, "reason": "Error", **fields})


CASES: list[tuple[str, dict[str, Any], list[Instance], list[str]]] = [
    (
        "it starts as many as may run at once",
        {"completions": 5, "parallelism": 2},
        [],
        ["create web-0 of web.1", "create web-1 of web.1"],
    ),
    ("what is done makes room for the next", {"completions": 3}, [done(0)], ["create web-1 of web.1"]),
    ("what runs takes its place", {"completions": 3}, [make_instance(0)], []),
    ("what stops takes its place, too", {"completions": 3}, [make_instance(0, stop="x")], []),
    (
        "a failed one waits and lets another go first",
        {"completions": 3},
        [failed(0, since=NOW)],
        ["create web-1 of web.1"],
    ),
    (
        "then it is tried again elsewhere",
        {"completions": 3},
        [failed(0)],
        ["replace web-0 of web.1 attempt 1 avoid n1"],
    ),
    (
        "one that its node refused has not failed",
        {"retries": 0},
        [failed(0, reason="Refused")],
        ["replace web-0 of web.1"],
    ),
    (
        "one stopped by its user is started again",
        {},
        [make_instance(0, Phase.STOPPED, stop="deleted by user")],
        ["replace web-0 of web.1"],
    ),
    (
        "less parallelism stops the cheapest",
        {"completions": 4, "parallelism": 1},
        [make_instance(0), make_instance(1, Phase.STARTING), make_instance(2)],
        ["stop web-2: the parallelism was reduced", "stop web-1: the parallelism was reduced"],
    ),
    (
        "fewer completions stop the highest",
        {"completions": 1, "parallelism": 3},
        [make_instance(0), make_instance(1)],
        ["stop web-1: the number of completions was reduced"],
    ),
    (
        "a lost one is replaced, and counts no failure",
        {"retries": 0},
        [make_instance(0, Phase.LOST, node="gone")],
        ["replace web-0 of web.1"],
    ),
    ("a lost one keeps its place until then", {"completions": 2}, [make_instance(0, Phase.LOST, node="n1")], []),
    (
        "what runs an old template is stopped",
        {"completions": 2},
        [make_instance(0, release="web.0")],
        ["stop web-0: updated to web.1"],
    ),
    (
        "what was done with an old template is done again",
        {"completions": 2},
        [done(0, release="web.0")],
        ["replace web-0 of web.1"],
    ),
]


@pytest.mark.parametrize(("fields", "instances", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_a_batch(fields: dict[str, Any], instances: list[Instance], expected: list[str]) -> None:
    assert sorted(words(run(make_batch(**fields), instances))) == sorted(expected)


def test_without_numbers_a_batch_runs_its_replicas_at_once() -> None:
    workload = make_workload(type="batch", replicas=3)
    assert len(words(run(workload, []))) == 3


def test_it_has_succeeded_when_every_index_has() -> None:
    workload = make_batch(completions=2, parallelism=2)
    assert (status_of(run(workload, [done(0), make_instance(1)])) or WorkloadStatus(phase="")).phase == "Running"
    status = status_of(run(workload, [done(0), done(1)]))
    assert status is not None
    assert (status.phase, status.succeeded, status.wanted) == ("Succeeded", 2, 2)


def test_it_has_failed_when_an_index_has_failed_too_often_and_the_rest_is_stopped() -> None:
    workload = make_batch(completions=3, parallelism=3, retries=1)
    draft = run(workload, [failed(0, attempt=1), make_instance(1), make_instance(2, Phase.PENDING)])
    assert words(draft) == ["stop web-1: the batch failed", "delete web-2"]
    status = status_of(draft)
    assert status is not None
    assert (status.phase, status.message) == ("Failed", "web-0 failed 2 times: Error, exit code 1")
    assert [note.reason for note in draft.notes] == ["Failed"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_the_end_of_a_batch_is_the_end_even_when_its_history_is_gone(phase: str) -> None:
    status = WorkloadStatus(phase=phase, release="web.1", wanted=5, succeeded=4, message="so it was")
    workload = make_batch(completions=5).changed(status=status)
    assert run(workload, []).writes == []
    assert run(workload, [make_instance(0, Phase.STOPPED)]).writes == []


def test_a_new_template_begins_anew() -> None:
    status = WorkloadStatus(phase="Failed", release="web.0", wanted=1)
    assert words(run(make_batch().changed(status=status), [])) == ["create web-0 of web.1"]


def test_a_deadline_counts_from_the_release() -> None:
    workload = make_batch(deadline="1m")
    early = run(workload, [make_instance(0)], now=NOW + 59)
    assert early.again_seconds == pytest.approx(1)
    late = run(workload, [make_instance(0)], now=NOW + 60)
    assert words(late) == ["stop web-0: the batch failed"]
    assert (status_of(late) or WorkloadStatus(phase="")).message == "not done within its deadline of 1m"


def test_a_long_run_does_not_wipe_out_the_failures_of_a_batch() -> None:
    workload = make_batch(retries=1)
    draft = run(workload, [failed(0, attempt=1, started_at=NOW - 90_000, since=NOW)])
    assert (status_of(draft) or WorkloadStatus(phase="")).phase == "Failed"


def test_nothing_lost_is_replaced_while_no_node_is_ready() -> None:
    assert words(run(make_batch(), [make_instance(0, Phase.LOST, node="gone")], ready=False)) == []


def indexed(recorded: str = "", **fields: Any) -> Workload:
    made = make_batch(completions=4, parallelism=4, indexed=True, **fields)
    return made.changed(status=WorkloadStatus(phase="Running", release="web.1", indices={"main": recorded}))


def test_an_indexed_batch_keeps_what_has_succeeded_by_index() -> None:
    status = status_of(run(indexed(), [done(0), done(2), make_instance(1), make_instance(3)]))
    assert status is not None
    assert (status.indices, status.succeeded) == ({"main": "0,2"}, 2)


def test_an_index_that_has_succeeded_is_not_run_again_when_its_instance_is_gone() -> None:
    assert words(run(indexed("0-1"), [])) == ["create web-2 of web.1", "create web-3 of web.1"]
    draft = run(indexed("0-2"), [done(3)])
    status = status_of(draft)
    assert status is not None
    assert (status.phase, status.indices, status.succeeded) == ("Succeeded", {"main": "0-3"}, 4)


def test_a_change_of_the_template_begins_all_indices_anew() -> None:
    changed = indexed("0-3").changed(status=WorkloadStatus(phase="Succeeded", release="web.0", indices={"main": "0-3"}))
    assert len(words(run(changed, []))) == 4


def test_a_failed_index_is_tried_again_as_itself() -> None:
    assert words(run(indexed("0,1,3"), [failed(2)])) == ["replace web-2 of web.1 attempt 1 avoid n1"]


def test_too_many_parallel_indices_are_refused() -> None:
    with pytest.raises(ValueError, match="too many indices at a time"):
        make_batch(completions=20_000, parallelism=20_000, indexed=True)
