"""The plan for a service, case by case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from mandor.controllers.draft import Draft
from mandor.controllers.replicas import ClusterView, ready_forever
from mandor.controllers.workload_plan import WorkloadInputs, plan, plan_in_steps
from mandor.lib.steps import PIECE
from mandor.model.instance import Instance, Move
from mandor.model.phase import Phase
from mandor.model.workload import Release, Workload
from mandor.store.base import Delete, Put
from tests.scenarios.make import NOW, make_instance, make_stored_release, make_workload


def run(
    workload: Workload | None,
    instances: Sequence[Instance] = (),
    *,
    releases: Sequence[Release] | None = None,
    ready: frozenset[str] = frozenset({"n1", "n2"}),
    now: float = NOW,
    healthy: Callable[[Instance], float] = ready_forever,
) -> Draft:
    known = [make_stored_release(workload)] if releases is None and workload else releases or []
    return plan(WorkloadInputs(workload, known, instances), ClusterView(now, ready, ready_seconds=healthy))


def words(draft: Draft) -> list[str]:
    """The writes to instances and releases as short sentences."""
    said = []
    for write in draft.writes:
        if isinstance(write, Delete):
            said.append(f"delete {write.key.name}")
        elif isinstance(write, Put) and isinstance(write.value, Instance):
            value = write.value
            if value.meta.uid:
                said.append(f"stop {value.meta.name}: {value.spec.stop.reason if value.spec.stop else '-'}")
            else:
                verb = "replace" if value.meta.version else "create"
                tail = f" attempt {value.spec.attempt} avoid {','.join(value.spec.avoid)}" if value.spec.attempt else ""
                said.append(f"{verb} {value.meta.name} of {value.spec.release}{tail}")
        elif isinstance(write, Put) and isinstance(write.value, Release):
            said.append(f"release {write.value.meta.name}")
    return said


def ready(index: int, **fields: Any) -> Instance:
    return make_instance(index, Phase.RUNNING, **fields)


def test_a_new_workload_gets_a_release_and_its_instances() -> None:
    assert words(run(make_workload(replicas=2), releases=[])) == [
        "release web.1",
        "create web-0 of web.1",
        "create web-1 of web.1",
    ]


def test_a_service_in_its_wanted_state_is_not_changed() -> None:
    workload = make_workload(replicas=2)
    draft = run(workload, [ready(0), ready(1)])
    assert words(draft) == []
    [status] = [write.value for write in draft.writes if isinstance(write, Put)]
    assert run(workload.changed(status=status.status), [ready(0), ready(1)]).writes == [], "told once"


CASES: list[tuple[str, dict[str, Any], list[Instance], list[str]]] = [
    (
        "scale up takes the lowest free numbers",
        {"replicas": 3},
        [ready(1)],
        ["create web-0 of web.1", "create web-2 of web.1"],
    ),
    (
        "scale down takes the newest",
        {"replicas": 1},
        [ready(0), ready(1, created_at=NOW + 5)],
        ["stop web-1: scaled down"],
    ),
    (
        "scale down takes what is not placed first",
        {"replicas": 1},
        [make_instance(0, Phase.PENDING), ready(1)],
        ["delete web-0"],
    ),
    (
        "then what is not ready",
        {"replicas": 1},
        [make_instance(0, Phase.RUNNING, ready=False), ready(1, created_at=NOW + 9)],
        ["stop web-0: scaled down"],
    ),
    ("what is told to stop is not told again", {"replicas": 0}, [ready(0, stop="scaled down")], []),
    ("what is over goes", {"replicas": 0}, [make_instance(0, Phase.STOPPED, stop="scaled down")], ["delete web-0"]),
    ("a stopping one counts as the one to lose", {"replicas": 1}, [ready(0, stop="x"), ready(1)], []),
    (
        "one stopped by its user comes back at once",
        {"replicas": 1},
        [make_instance(0, Phase.STOPPED, stop="deleted by user", attempt=4)],
        ["replace web-0 of web.1"],
    ),
    (
        "a waiting one that is told to stop is replaced at once",
        {"replicas": 1},
        [make_instance(0, Phase.PENDING, stop="deleted by user")],
        ["replace web-0 of web.1"],
    ),
    ("a failed one waits", {"replicas": 1}, [make_instance(0, Phase.FAILED, since=NOW - 29)], []),
    (
        "and is then tried elsewhere",
        {"replicas": 1},
        [make_instance(0, Phase.FAILED, since=NOW - 30)],
        ["replace web-0 of web.1 attempt 1 avoid n1"],
    ),
    ("the next time it waits longer", {"replicas": 1}, [make_instance(0, Phase.FAILED, since=NOW - 59, attempt=1)], []),
    (
        "and remembers both nodes",
        {"replicas": 1},
        [make_instance(0, Phase.FAILED, since=NOW - 60, attempt=1, avoid=("n2",))],
        ["replace web-0 of web.1 attempt 2 avoid n2,n1"],
    ),
    (
        "five nodes at most",
        {"replicas": 1},
        [make_instance(0, Phase.FAILED, since=0, attempt=9, avoid=("a", "b", "c", "d", "e"))],
        ["replace web-0 of web.1 attempt 10 avoid b,c,d,e,n1"],
    ),
    (
        "a long life wipes out earlier failures",
        {"replicas": 1},
        [make_instance(0, Phase.FAILED, since=NOW - 31, started_at=NOW - 9000, attempt=7)],
        ["replace web-0 of web.1 attempt 1 avoid n1"],
    ),
    (
        "a service that ends well is started again, too",
        {"replicas": 1},
        [make_instance(0, Phase.SUCCEEDED, since=NOW - 31)],
        ["replace web-0 of web.1 attempt 1 avoid "],
    ),
    (
        "one without attempts stays ended",
        {"replicas": 1, "reschedule": {"attempts": 0}},
        [make_instance(0, Phase.SUCCEEDED, since=NOW - 9000, started_at=NOW - 20_000)],
        [],
    ),
    (
        "also after it failed",
        {"replicas": 1, "reschedule": {"attempts": 0}},
        [make_instance(0, Phase.FAILED, since=NOW - 9000)],
        [],
    ),
    (
        "one that has attempts left is replaced",
        {"replicas": 1, "reschedule": {"attempts": 2}},
        [make_instance(0, Phase.FAILED, since=0, attempt=1)],
        ["replace web-0 of web.1 attempt 2 avoid n1"],
    ),
    (
        "one that used all attempts is not",
        {"replicas": 1, "reschedule": {"attempts": 2}},
        [make_instance(0, Phase.FAILED, since=0, attempt=2)],
        [],
    ),
    (
        "an instance without attempts that its node refused is placed again",
        {"replicas": 1, "reschedule": {"attempts": 0}},
        [make_instance(0, Phase.FAILED, reason="Refused", since=NOW - 2)],
        ["replace web-0 of web.1"],
    ),
    (
        "an instance without attempts on a lost node is replaced",
        {"replicas": 1, "reschedule": {"attempts": 0}},
        [make_instance(0, Phase.LOST, node="gone")],
        ["replace web-0 of web.1"],
    ),
    (
        "a clock that runs ahead does not stop anything for ever",
        {"replicas": 1},
        [make_instance(0, Phase.FAILED, since=NOW + 90_000)],
        [],
    ),
    (
        "one that its node refused is placed again soon, and that counts as nothing",
        {"replicas": 1},
        [make_instance(0, Phase.FAILED, reason="Refused", since=NOW - 2)],
        ["replace web-0 of web.1"],
    ),
    (
        "a lost one is replaced at once",
        {"replicas": 1},
        [make_instance(0, Phase.LOST, node="gone", attempt=2, avoid=("n9",))],
        ["replace web-0 of web.1 attempt 2 avoid n9"],
    ),
    ("not when its node is back", {"replicas": 1}, [make_instance(0, Phase.LOST, node="n1")], []),
    (
        "and not when the author said so",
        {"replicas": 1, "disconnect": {"replace": False}},
        [make_instance(0, Phase.LOST, node="gone")],
        [],
    ),
    (
        "but a lost one that is told to stop is over",
        {"replicas": 1, "disconnect": {"replace": False}},
        [make_instance(0, Phase.LOST, node="gone", stop="deleted by user")],
        ["replace web-0 of web.1"],
    ),
    (
        "a surplus lost one goes",
        {"replicas": 1},
        [make_instance(0, Phase.LOST, node="gone"), ready(1)],
        ["delete web-0"],
    ),
    (
        "a group that is no more goes",
        {"replicas": 1},
        [ready(0), ready(0, group="old", version=3)],
        ["stop web-old-0: the workload has no group old any more"],
    ),
]


@pytest.mark.req("S2-16", "S2-18", "S2-49")
@pytest.mark.parametrize(("fields", "instances", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_a_service(fields: dict[str, Any], instances: list[Instance], expected: list[str]) -> None:
    assert words(run(make_workload(**fields), instances)) == expected


def test_a_plan_returns_when_to_plan_again() -> None:
    draft = run(
        make_workload(replicas=2), [make_instance(0, Phase.FAILED, since=NOW - 10), make_instance(1, Phase.FAILED)]
    )
    assert draft.again_seconds == 20
    ahead = run(make_workload(replicas=1), [make_instance(0, Phase.FAILED, since=NOW + 90_000)])
    assert ahead.again_seconds == 30


def test_nothing_lost_is_replaced_while_no_node_is_ready() -> None:
    lost = make_instance(0, Phase.LOST, node="gone")
    assert words(run(make_workload(replicas=1), [lost], ready=frozenset())) == []


# Releases.


def test_the_same_template_again_is_a_new_release() -> None:
    first, second = make_workload(replicas=0), make_workload(replicas=0, env={"V": "2"})
    releases = [make_stored_release(first, 1), make_stored_release(second, 2)]
    assert words(run(first, releases=releases)) == ["release web.3"]
    assert words(run(second, releases=releases)) == []


@pytest.mark.parametrize(
    "fields", [{"replicas": 5}, {"restart": {"attempts": 3}}, {"disconnect": {"replace": False}}, {"priority": 7}]
)
def test_what_is_not_part_of_the_template_makes_no_release(fields: dict[str, Any]) -> None:
    releases = [make_stored_release(make_workload(replicas=1))]
    assert not [said for said in words(run(make_workload(**fields), releases=releases)) if said.startswith("release")]


def test_a_restart_makes_a_release() -> None:
    releases = [make_stored_release(make_workload(replicas=0))]
    assert words(run(make_workload(replicas=0, restarted=1), releases=releases)) == ["release web.2"]


def test_old_releases_are_deleted_unless_an_instance_uses_them() -> None:
    workload = make_workload(replicas=1)
    releases = [make_stored_release(make_workload(env={"V": str(n)}), n) for n in range(1, 12)]
    releases.append(make_stored_release(workload, 12))
    assert [
        said for said in words(run(workload, [ready(0, release="web.1")], releases=releases)) if "delete" in said
    ] == ["delete web.2"]


# The end.


def test_a_deleted_workload_stops_its_instances_and_keeps_releases_until_they_are_over() -> None:
    releases = [make_stored_release(make_workload())]
    instances = [
        ready(0),
        make_instance(1, Phase.PENDING),
        make_instance(2, Phase.STOPPED),
        make_instance(3, Phase.LOST),
    ]
    assert words(run(None, instances, releases=releases)) == [
        "stop web-0: the workload was deleted",
        "delete web-1",
        "delete web-2",
        "delete web-3",
    ]
    assert words(run(None, [], releases=releases)) == ["delete web.1"]


# Status.


@pytest.mark.parametrize(
    ("instances", "phase"),
    [
        ([], "Pending"),
        ([make_instance(0, Phase.PENDING), make_instance(1, Phase.PENDING)], "Pending"),
        ([ready(0), make_instance(1, Phase.PENDING)], "Running"),
        ([ready(0), ready(1)], "Running"),
        ([ready(0), ready(1, release="web.0")], "Updating"),
    ],
)
def test_the_status_in_one_word(instances: list[Instance], phase: str) -> None:
    draft = run(make_workload(replicas=2), instances)
    [workload] = [write.value for write in draft.writes if isinstance(write, Put) and isinstance(write.value, Workload)]
    assert workload.status.phase == phase
    assert workload.status.wanted == 2


def test_the_status_shows_the_message_of_the_first_unhealthy_instance() -> None:
    instances = [ready(0), make_instance(1, Phase.PENDING, reason="Unschedulable", message="0/2 nodes fit: 2 PoolFit")]
    draft = run(make_workload(replicas=2), instances)
    [workload] = [write.value for write in draft.writes if isinstance(write, Put) and isinstance(write.value, Workload)]
    assert workload.status.message == "web-1: 0/2 nodes fit: 2 PoolFit"
    assert (workload.status.running, workload.status.ready, workload.status.pending) == (1, 1, 1)


@pytest.mark.parametrize("change", ["none", "fewer", "update", "gone", "batch", "lost"])
def test_no_step_of_a_large_plan_covers_more_than_a_few_instances(change: str) -> None:
    count = 7 * PIECE
    fields: dict[str, dict[str, Any]] = {
        "fewer": {"replicas": count // 2},
        "update": {"image": "web:2"},
        "batch": {"type": "batch"},
    }
    workload = None if change == "gone" else make_workload(**{"replicas": count, **fields.get(change, {})})
    phase = {"lost": Phase.LOST, "batch": Phase.FAILED}.get(change)
    instances = [ready(index) if phase is None else make_instance(index, phase) for index in range(count)]
    seen = WorkloadInputs(workload, [make_stored_release(make_workload(replicas=count))], instances)
    looks = list(plan_in_steps(seen, ClusterView(NOW, ready_nodes=frozenset({"n2"}))))
    assert max(looks) <= 5 * PIECE
    assert sum(looks) >= count


def test_the_deferred_writes_of_a_plan_equal_those_of_the_next_plans() -> None:
    draft = run(make_workload(replicas=2_500), [])
    made = [write.value for write in (*draft.writes, *draft.rest) if isinstance(write, Put)]
    names = [each.meta.name for each in made if isinstance(each, Instance)]
    assert names == [f"web-{index}" for index in range(2_500)]
    assert draft.unfinished  # Whoever does not go on with it has the next plan do so.


def test_thousands_are_created_in_steps_and_the_status_is_written_at_the_end() -> None:
    workload, instances, steps = make_workload(replicas=2_500), list[Instance](), []
    while True:
        draft = run(workload, instances)
        made = [write.value for write in draft.writes if isinstance(write, Put) and isinstance(write.value, Instance)]
        told = [write.value for write in draft.writes if isinstance(write, Put) and isinstance(write.value, Workload)]
        steps.append((len(made), draft.unfinished, len(told)))
        instances += [make_instance(each.spec.index, Phase.PENDING) for each in made]
        if not draft.unfinished:
            break
    assert steps == [(500, True, 0)] * 4 + [(500, False, 1)]
    assert {each.meta.name for each in instances} == {f"web-{index}" for index in range(2_500)}


def test_a_move_cancelled_by_an_update_allows_no_extra_instance() -> None:
    old = make_workload(replicas=2)
    before = make_stored_release(old)
    new = make_workload(replicas=2, env={"A": "1"}, update={"max_surge": 1, "max_unavailable": 0})
    new = new.changed(status=old.status)
    first, second, heir = ready(0), ready(1), make_instance(2, Phase.STARTING)
    sent = first.changed(spec=replace(first.spec, move=Move(reason="a better place", to="n2", at=NOW)))
    heir = heir.changed(spec=replace(heir.spec, pin="n2", instead_of=first.meta.uid))
    draft = run(new, [sent, second, heir], releases=[before, make_stored_release(new, 2)])
    assert not [said for said in words(draft) if said.startswith("create")], "with the heir there are three"


@pytest.mark.parametrize("to", ["", "n2"], ids=["drained", "sent"])
def test_the_old_instance_stops_when_its_replacement_has_been_healthy_long_enough(to: str) -> None:
    workload = make_workload(replicas=2, update={"min_healthy": "30s"})
    old, heir = ready(0), ready(2, node="n2")
    old = old.changed(spec=replace(old.spec, move=Move(reason="why not", to=to, at=NOW)))
    heir = heir.changed(spec=replace(heir.spec, pin=to, instead_of=old.meta.uid))
    members = [old, ready(1), heir]
    early = run(workload, members, healthy=lambda each: 20.0)
    assert words(early) == []
    assert early.again_seconds == 10
    assert words(run(workload, members, healthy=lambda each: 30.0)) == ["stop web-0: moved to n2: why not"]


def test_a_move_is_not_cancelled_while_its_replacement_becomes_healthy() -> None:
    workload = make_workload(replicas=1, update={"min_healthy": "20m", "deadline": "1h"})
    old, heir = ready(0), ready(1, node="n2")
    old = old.changed(spec=replace(old.spec, move=Move(reason="why not", to="n2", at=NOW)))
    heir = heir.changed(spec=replace(heir.spec, pin="n2", instead_of=old.meta.uid))
    assert words(run(workload, [old, heir], now=NOW + 1000, healthy=lambda each: 990.0)) == []


def test_a_stop_first_move_does_not_count_instances_that_just_became_ready() -> None:
    workload = make_workload(replicas=2, update={"order": "stop-first", "min_healthy": "30s"})
    old, young = ready(0), ready(1, node="n2")
    old = old.changed(spec=replace(old.spec, move=Move(reason="drained", first="stop", at=NOW)))
    seconds = {old.meta.uid: 500.0, young.meta.uid: 5.0}
    assert words(run(workload, [old, young], healthy=lambda each: seconds[each.meta.uid])) == []
    seconds[young.meta.uid] = 30.0
    gone = run(workload, [old, young], healthy=lambda each: seconds[each.meta.uid])
    assert words(gone) == ["stop web-0: drained"]
