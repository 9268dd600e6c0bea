"""The checker can fail: for every rule there is a history that breaks it, and only it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.faults import checker
from tests.faults.checker import RULES, violations
from tests.faults.history import Call, Final, History, Life, Outcome, Read, Stored

UID, NEXT = "u1", "u2"


def _workload(revision: int, before: int = 0, *, replicas: int = 1, mark: str = "c1") -> Stored:
    return Stored(revision, revision, "workload", "web", before, facts={"replicas": replicas, "mark": mark})


def _instance(revision: int, before: int, phase: str, node: str = "n1", uid: str = UID) -> Stored:
    facts = {"uid": uid, "phase": phase, "node": node, "workload": "web"}
    return Stored(revision, revision, "instance", "web-0", before, facts=facts)


def _lease(name: str, revision: int, before: int, holder: str, renewals: int = 0) -> Stored:
    return Stored(revision, revision, "lease", name, before, facts={"holder": holder, "renewals": renewals})


def _call(verb: str = "apply", revision: int = 5, outcome: Outcome = "acknowledged", **more: Any) -> Call:
    facts: dict[str, Any] = {"mark": "c1", "count": 1, "begun": 1.0, "ended": 2.0} | more
    return Call(verb, "web", 0, outcome=outcome, revision=revision, **facts)


def _life(node: str = "n1", uid: str = UID, attempt: int = 1, begun: float = 10.0, ended: float | None = None) -> Life:
    return Life(node, uid, "main", attempt, "web-0", begun, ended)


GOOD = History(
    calls=[_call()],
    reads=[Read(0, 3.0, 4.0, 7)],
    stored=[
        _lease("leader-scheduler", 1, 0, "s0"),
        _lease("term-scheduler", 1, 0, "s0", 1),
        _workload(5),
        _instance(6, 0, "Pending", ""),
        _instance(7, 6, "Reserved"),
        _instance(8, 7, "Starting"),
        _instance(9, 8, "Running"),
        _lease("leader-scheduler", 10, 1, "s0", 1),
    ],
    lives=[_life()],
    final=Final(
        listings=[{"web": 1}, {"web": 1}],
        versions={"lease/leader-scheduler": 10, "lease/term-scheduler": 1, "workload/web": 5, "instance/web-0": 9},
        instances=[{"name": "web-0", "uid": UID, "workload": "web", "node": "n1", "phase": "Running"}],
    ),
)
"""One workload with one instance, and one leader."""


def _more(*stored: Stored, **changed: Any) -> History:
    """The good history, and then these; the store ends as they lead to."""
    versions = dict(GOOD.final.versions)
    for each in stored:
        versions[f"{each.kind}/{each.name}"] = each.revision
    return replace(GOOD, stored=[*GOOD.stored, *stored], final=replace(GOOD.final, versions=versions), **changed)


def _replaced(phase: str, *, ended: float | None, single: bool = False) -> History:
    """The instance came to that phase and is gone, and another one of its name runs on another node."""
    deleted = Stored(12, 12.0, "instance", "web-0", 11, gone=True)
    later = [_instance(13, 0, "Pending", "", NEXT), _instance(14, 13, "Reserved", "n2", NEXT)]
    found = _more(
        *(_instance(11, 9, phase), deleted, *later),
        *(_instance(15, 14, "Starting", "n2", NEXT), _instance(16, 15, "Running", "n2", NEXT)),
        lives=[_life(ended=ended), _life("n2", NEXT, begun=30.0)],
        single=frozenset({"web"} if single else ()),
    )
    running = [{"name": "web-0", "uid": NEXT, "workload": "web", "node": "n2", "phase": "Running"}]
    return replace(found, final=replace(found.final, instances=running))


BROKEN: dict[str, list[History]] = {
    "changes_are_seen_in_order": [
        replace(GOOD, final=replace(GOOD.final, versions={})),
        _more(_lease("leader-scheduler", 12, 11, "s0", 2)),  # 11 was never seen
        _more(_lease("leader-scheduler", 9, 10, "s0", 2)),
    ],
    "acknowledged_writes_are_stored": [
        replace(GOOD, calls=[*GOOD.calls, _call(revision=6, begun=4.0, ended=5.0)]),
        replace(GOOD, calls=[_call(mark="c2")]),
        replace(GOOD, calls=[_call("scale", mark="", count=3)]),
        replace(GOOD, calls=[*GOOD.calls, _call("delete", mark="", count=None)]),
        replace(GOOD, calls=[*GOOD.calls, _call("drain", mark="", count=None, begun=0.5, ended=1.5, revision=4)]),
    ],
    "refused_writes_are_not_stored": [replace(GOOD, calls=[_call(outcome="refused", revision=0)])],
    "revisions_keep_to_the_clock": [
        replace(GOOD, reads=[Read(1, 0.0, 0.5, 6)]),
        _more(
            _workload(11, 5, mark="c2"),
            calls=[_call(), _call(mark="c2", revision=11, begun=0.1, ended=0.5)],
            reads=[],
        ),
    ],
    "no_server_goes_back": [
        replace(GOOD, reads=[Read(0, 3.0, 4.0, 7), Read(0, 5.0, 6.0, 6)]),
        replace(GOOD, reads=[Read(0, 3.0, 4.0, 4)]),
    ],
    "an_order_has_one_node": [
        _more(_instance(11, 9, "Running", "n2"), _instance(12, 11, "Running", "n1")),
        replace(GOOD, lives=[_life("n2", ended=11.0), _life(attempt=2, begun=12.0)]),
    ],
    "a_unit_begins_once": [
        replace(GOOD, lives=[_life(ended=11.0), _life(begun=12.0)]),
        replace(GOOD, lives=[_life(ended=20.0), _life(attempt=2, begun=12.0)]),
    ],
    "a_name_runs_once": [
        _replaced("Lost", ended=40.0, single=True),
        _replaced("Stopped", ended=40.0),
    ],
    "phases_move_as_allowed": [
        _more(_instance(11, 9, "Stopped"), _instance(12, 11, "Running")),
        _more(_instance(11, 9, "Reserved"), _instance(12, 11, "Starting")),
    ],
    "a_deposed_leader_writes_nothing": [
        _more(
            *(_lease("leader-scheduler", 11, 10, "s1"), _lease("term-scheduler", 11, 1, "s1", 2)),
            _lease("leader-scheduler", 12, 11, "s0", 2),
        ),
        _more(_lease("leader-scheduler", 11, 10, "s1"), _lease("term-scheduler", 11, 1, "s1", 3)),
    ],
    "servers_agree": [replace(GOOD, final=replace(GOOD.final, listings=[{"web": 1}, {"web": 2}]))],
    "counts_converged": [
        replace(GOOD, final=replace(GOOD.final, instances=[]), lives=[_life(ended=20.0)]),
        replace(
            GOOD,
            final=replace(GOOD.final, instances=[{**GOOD.final.instances[0], "phase": "Starting"}]),
            lives=[_life(ended=20.0)],
        ),
    ],
    "machines_run_what_is_ordered": [replace(GOOD, lives=[]), replace(GOOD, lives=[_life(ended=20.0)])],
}


def test_a_history_in_which_all_went_well_breaks_no_rule() -> None:
    assert violations(GOOD) == []


def test_every_rule_has_a_history_that_breaks_it() -> None:
    assert {rule.__name__ for rule in RULES} == BROKEN.keys()


@pytest.mark.parametrize(
    ("rule", "history"), [(rule, history) for rule, histories in BROKEN.items() for history in histories]
)
def test_a_history_that_breaks_a_rule_is_found_by_that_rule_alone(rule: str, history: History) -> None:
    assert list(getattr(checker, rule)(history)), "it was not found"
    others = [each for each in RULES if each.__name__ != rule and list(each(history))]
    assert others == []


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(_replaced("Lost", ended=40.0), id="given up, and allowed to run twice"),
        pytest.param(_replaced("Stopped", ended=29.0), id="ended before the next one began"),
        pytest.param(_replaced("Lost", ended=29.0, single=True), id="stopped by itself before it was replaced"),
        pytest.param(replace(GOOD, calls=[*GOOD.calls, _call(outcome="unknown", mark="c9")]), id="nobody knows"),
        pytest.param(_more(_lease("leader-scheduler", 11, 10, "")), id="the lease was given back"),
        pytest.param(
            _more(_workload(11, 5, mark=""), calls=[*GOOD.calls, _call("delete", outcome="refused", mark="")]),
            id="a deletion was refused, and has no mark",
        ),
    ],
)
def test_what_is_allowed_is_not_called_a_mistake(history: History) -> None:
    assert violations(history) == []
