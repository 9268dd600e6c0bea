"""What the dashboard shows, without a terminal."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.cli.kinds import KINDS, Kind, find_kind
from mandor.cli.top import rows as rows_module
from mandor.cli.top.command_line import Typed, read
from mandor.cli.top.rows import Order, Row, RowCache, Scope, matcher
from mandor.cli.top.text_view import wrapped
from mandor.cli.top.view import NARROW, SORTS, natural, view_of
from mandor.errors import Invalid
from mandor.model.codec import to_plain
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus
from mandor.model.meta import Meta
from mandor.model.node import Node, NodePhase, NodeSpec, NodeStatus
from mandor.model.phase import Phase
from mandor.model.record import Event, EventSpec
from mandor.model.resources import Resources


def instance(name: str, phase: Phase = Phase.RUNNING, *, on: str = "n1", restarts: int = 0) -> Instance:
    return Instance(
        meta=Meta(name=name, namespace="default", labels={"tier": "front"}, created_at=time.time() - 300),
        spec=InstanceSpec(workload=name.rpartition("-")[0], release="web.1", index=0, node=on),
        status=InstanceStatus(phase=phase, restarts=restarts),
    )


def node(name: str, cpu_used: int) -> Node:
    status = NodeStatus(
        phase=NodePhase.READY, capacity=Resources(4000, 8 << 30), usage=Resources(cpu_used, cpu_used << 20)
    )
    return Node(meta=Meta(name=name), spec=NodeSpec(), status=status)


def names(rows: list[Row]) -> list[str]:
    return [row.place[1] for row in rows]


INSTANCES = [instance("web-10"), instance("web-9", Phase.PENDING, on=""), instance("db-0", on="n2", restarts=4)]


def test_names_are_ordered_as_people_count() -> None:
    cache = RowCache(view_of(find_kind("instance")))
    assert names(cache.rows(INSTANCES)) == ["db-0", "web-9", "web-10"]
    assert names(cache.rows(INSTANCES, order=Order("NAME", reverse=True))) == ["web-10", "web-9", "db-0"]
    assert names(cache.rows(INSTANCES, order=Order("RESTARTS"))) == ["db-0", "web-9", "web-10"]


def test_the_same_key_again_turns_the_order_round() -> None:
    assert Order("NAME").toggled("NAME") == Order("NAME", reverse=True)
    assert Order("NAME", reverse=True).toggled("AGE") == Order("AGE")


def test_a_filter_is_an_expression_looks_at_labels_and_can_be_turned_round() -> None:
    cache = RowCache(view_of(find_kind("instance")))
    assert names(cache.rows(INSTANCES, wanted="WEB-1")) == ["web-10"]
    assert names(cache.rows(INSTANCES, wanted="^db|pend")) == ["db-0", "web-9"]
    assert names(cache.rows(INSTANCES, wanted="!web")) == ["db-0"]
    assert len(cache.rows(INSTANCES, wanted="tier=front")) == 3
    assert cache.rows(INSTANCES, wanted="5m") == [], "an age is gone before it is read"


@given(st.text(max_size=20), st.text(max_size=40))
def test_no_filter_breaks_it(wanted: str, line: str) -> None:
    assert matcher(wanted)(line) in {True, False}


def test_a_row_is_kept_as_long_as_its_object_is_the_same() -> None:
    cache = RowCache(view_of(find_kind("instance")))
    before = cache.rows(INSTANCES)
    changed = [*INSTANCES[:2], instance("db-0", Phase.FAILED)]
    after = cache.rows(changed)
    assert [old is new for old, new in zip(before, after, strict=True)] == [False, True, True]
    assert "Failed" in after[0].cells(cache.view.fields)


def test_of_ten_thousand_rows_only_those_looked_at_are_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    worked_out: list[object] = []

    def counted(value: object) -> object:
        worked_out.append(value)
        return to_plain(value)

    monkeypatch.setattr(rows_module, "to_plain", counted)
    cache = RowCache(view_of(find_kind("instance")))
    values = [instance(f"web-{number}") for number in range(10_000)]
    rows = cache.rows(values, scope=Scope("workload", "default", "web"))
    assert len(rows) == 10_000
    assert worked_out == []
    for row in rows[:24]:
        row.cells(cache.view.fields)
    assert len(worked_out) == 24


def test_a_level_down_shows_what_belongs_to_the_object() -> None:
    cache = RowCache(view_of(find_kind("instance")))
    assert names(cache.rows(INSTANCES, scope=Scope("node", "", "n2"))) == ["db-0"]
    assert names(cache.rows(INSTANCES, scope=Scope("workload", "default", "web"))) == ["web-9", "web-10"]
    assert cache.rows(INSTANCES, scope=Scope("workload", "other", "web")) == []


def test_an_event_stands_for_what_it_is_about() -> None:
    told = Event(
        meta=Meta(name="e1", namespace="default"),
        spec=EventSpec(
            about="instance default/web-9", reason="Placed", message="on\nn1", source="scheduler", last_at=5.0
        ),
    )
    assert Row(told).subject == Scope("instance", "default", "web-9")
    assert Scope.read("node n1") == Scope("node", "", "n1")
    cache = RowCache(view_of(find_kind("event")))
    assert len(cache.rows([told], scope=Scope("instance", "default", "web-9"))) == 1
    assert cache.rows([told], scope=Scope("node", "", "n1")) == []
    assert "on n1" in Row(told).cells(cache.view.fields)


def test_nodes_show_their_use_and_their_instances_the_fullest_first() -> None:
    cache = RowCache(view_of(find_kind("node")))
    nodes = [node("n1", 400), node("n2", 3000)]
    rows = cache.rows(nodes, order=Order("CPU%"), counts={"n2": 7})
    assert names(rows) == ["n2", "n1"]
    cells = dict(zip([field.title for field in cache.view.fields], rows[0].cells(cache.view.fields), strict=True))
    assert (cells["INST"], cells["CPU%"], cells["PHASE"]) == ("7", "75%", "Ready")
    assert names(cache.rows(nodes, order=Order("INST"), counts={"n1": 8, "n2": 7})) == ["n1", "n2"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_has_a_view(kind: Kind) -> None:
    for wide in (False, True):
        view = view_of(kind, wide=wide, namespaces=True)
        titles = [field.title for field in view.fields]
        assert view.order in titles
        assert set(view.keys.values()) <= set(titles)
        assert ("NAMESPACE" in titles) is kind.namespaced


def test_every_sort_key_sorts_something() -> None:
    used = {key for kind in KINDS for key in view_of(kind).keys}
    assert used == set(SORTS)
    assert set(NARROW) == {"node", "workload", "instance"}


@given(st.lists(st.text(max_size=12)))
def test_any_texts_have_a_natural_order(texts: list[str]) -> None:
    assert sorted(sorted(texts, key=natural)) == sorted(texts)


@given(st.lists(st.text(max_size=30)), st.integers(1, 12))
def test_wrapping_loses_nothing(lines: list[str], width: int) -> None:
    found = wrapped(lines, width)
    assert "".join(found) == "".join(lines)
    assert all(len(line) <= width for line in found)
    assert len(found) >= len(lines)


# What is typed.


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("no", Typed("view", find_kind("node"))),
        ("wl", Typed("view", find_kind("workload"))),
        ("po", Typed("view", find_kind("instance"))),
        ("events", Typed("view", find_kind("event"))),
        ("q", Typed("quit")),
        ("q!", Typed("quit")),
        ("ns shop", Typed("namespace", name="shop")),
        ("ns all", Typed("namespace")),
        ("ns", Typed("view", find_kind("namespace"))),
        ("logs web-0 app", Typed("logs", name="web-0", task="app")),
        ("why web-0", Typed("explain", name="web-0")),
    ],
)
def test_what_is_typed_is_understood(text: str, typed: Typed) -> None:
    assert read(text) == typed


def test_what_is_mistyped_is_reported_with_what_is_near() -> None:
    with pytest.raises(Invalid) as told:
        read("instnces")
    assert told.value.hint == "did you mean `instances`?"
    with pytest.raises(Invalid):
        read("logs a b c")
    with pytest.raises(Invalid):
        read("")
