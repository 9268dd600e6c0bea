"""`update`: what its words come to, and what is refused, with the line and a way out."""

from __future__ import annotations

import pytest

from mandor.errors import Invalid
from mandor.model.group import Group
from mandor.model.manifest import load_manifests
from mandor.model.update import Update
from mandor.model.workload import Workload

WEB = "name: web\nimage: nginx\nreplicas: 4\n"


def group_of(text: str) -> Group:
    (document,) = load_manifests(text)
    assert isinstance(document.object, Workload)
    return document.object.spec.groups["main"]


@pytest.mark.parametrize(
    ("update", "room", "canaries"),
    [
        ("{}", (1, 0), 0),
        ("{max_surge: 50%, max_unavailable: 30%}", (2, 1), 0),
        ("{max_surge: 1%}", (1, 0), 0),
        ("{max_surge: 0, max_unavailable: 1%}", (0, 1), 0),
        ("{order: stop-first}", (0, 1), 0),
        ("{order: stop-first, max_unavailable: 3}", (0, 3), 0),
        ("{canary: 2}", (1, 0), 2),
        ("{strategy: canary}", (1, 0), 1),
        ("{strategy: blue-green}", (4, 0), 4),
    ],
)
def test_how_many_more_and_how_many_fewer(update: str, room: tuple[int, int], canaries: int) -> None:
    group = group_of(f"{WEB}update: {update}\n")
    assert group.update_room() == room
    assert group.update.canaries(group.count) == canaries


@pytest.mark.parametrize(
    "apart",
    [
        "volumes: {data: {type: local}}\n",
        "ports: {http: {port: 80, host: 8080}}\n",
        "gang: {}\n",
    ],
)
def test_instances_that_cannot_run_in_parallel_stop_first(apart: str) -> None:
    assert group_of(WEB + apart).update_room() == (0, 1)


def test_a_disruption_budget_holds_for_updates_too() -> None:
    text = f"{WEB}update: {{max_surge: 1, max_unavailable: 3}}\ndisruption: {{max_unavailable: 1}}\n"
    assert group_of(text).update_room() == (1, 1)


@pytest.mark.parametrize(
    ("more", "told", "hint"),
    [
        ("update: {max_surge: 0, max_unavailable: 0%}", "no instance could ever be replaced", "at least 1"),
        ("update: {canary: 5}", "5 canaries are more than 4 replicas", "at most 4"),
        (
            "update: {strategy: rolling, canary: 1}",
            "`canary` cannot be combined with `strategy: rolling`",
            "strategy: canary",
        ),
        ("update: {strategy: blue-green, max_surge: 1}", "cannot be combined with `strategy: blue-green`", "remove"),
        ("update: {order: stop-first, max_surge: 1}", "`order: stop-first` excludes", "0, or"),
        ("update: {order: start-first, max_surge: 0}", "`order: start-first` requires", "at least 1"),
        ("update: {order: stop-first, max_unavailable: 0}", "`order: stop-first` requires", "at least 1"),
        ("update: {deadline: 5s}", "ends before an instance can become available", "longer than"),
        ("update: {max_surge: many}", "write a number or 0% to 100%", None),
        ("update: {max_srge: 1}", "unknown key `max_srge`", "max_surge"),
        ("update: {canary: 1}\nvolumes: {d: {per_instance: true}}", "would start without its data", "remove it"),
        ("update: {max_surge: 1}\ngang: {}", "a gang is placed as a whole", "remove it"),
        ("update: {order: stop-first}\ndisruption: {max_unavailable: 0}", "no instance may be unavailable", "at least"),
        ("update: {canary: 1}\ntype: batch", "a batch cannot have `update`", "remove"),
    ],
)
def test_what_cannot_work_is_refused_with_its_line_and_a_way_out(more: str, told: str, hint: str | None) -> None:
    with pytest.raises(Invalid, match=told) as refused:
        load_manifests(f"{WEB}{more}\n")
    assert refused.value.facts["line"] in {4, 5}
    if hint is not None:
        assert hint in (refused.value.hint or "")


def test_update_is_no_part_of_a_template() -> None:
    assert "update" not in group_of(WEB).template.__struct_fields__
    assert Update().kind == "rolling"
