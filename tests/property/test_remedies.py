"""Remedies work, are minimal for their kind, and leave the table unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import structs

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Taint
from mandor.placement.cycle import decide
from mandor.placement.explain import score_table, steps_of
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.profiles import default_profile
from mandor.placement.remedy import Remedy, remedies
from mandor.placement.table import Table
from tests.scenarios.make import GI, MI, make_node, make_template

node = st.fixed_dictionaries(
    {
        "cpu": st.integers(1, 4),
        "memory": st.integers(1, 8),
        "zone": st.sampled_from(["a", "b"]),
        "cordoned": st.booleans(),
        "tainted": st.booleans(),
        "taken": st.integers(0, 4),
    }
)
wanted = st.fixed_dictionaries(
    {
        "cpu": st.sampled_from(["500m", "2", "6"]),
        "memory": st.sampled_from(["256Mi", "3Gi", "9Gi"]),
        "zone": st.sampled_from(["", "a", "c"]),
    }
)
PROFILE = default_profile()


def key(name: str) -> Key:
    return Key(Instance.kind, "default", name)


def table_of(nodes: list[dict[str, Any]]) -> Table:
    table = Table()
    small = Shape.of(make_template(cpu="500m", memory="1Gi"))
    for index, each in enumerate(nodes):
        table.set_node(
            make_node(
                f"n{index}",
                cpu=each["cpu"],
                memory=each["memory"] * GI,
                labels={"zone": each["zone"]},
                cordoned=each["cordoned"],
                taints=(Taint("dedicated", "db"),) if each["tainted"] else (),
            )
        )
        for number in range(min(each["taken"], each["cpu"] * 2, each["memory"])):
            table.set_allocation(key(f"old-{index}-{number}"), f"n{index}", small)
    return table


def request_of(fields: dict[str, Any]) -> PlacementRequest:
    where = [{"rule": f"zone == {fields['zone']}"}] if fields["zone"] else []
    return PlacementRequest(
        key("new-0"), Shape.of(make_template(cpu=fields["cpu"], memory=fields["memory"], where=where))
    )


def counted(table: Table) -> dict[str, Any]:
    nodes = table.snapshot().nodes
    return {each.meta.name: (each, table.free(each.meta.name)) for each in nodes} | {
        str(each): allocation for each, allocation in table.allocations.items()
    }


def carried_out(table: Table, request: PlacementRequest, remedy: Remedy) -> PlacementRequest:
    """Apply a remedy by its text alone."""
    words = remedy.text.split()
    if remedy.kind == "uncordon":
        found = table.node(words[1])
        assert found is not None
        table.set_node(make_node(**_fields(found)))
    elif remedy.kind == "end":
        assert table.drop_allocation(key(words[1]))
    elif remedy.kind == "less":
        amounts = dict(request.shape.wanted)
        for resource, unit in (("cpu", "cpu"), ("memory", "memory")):
            if f" {unit} instead of" in remedy.text:
                text = remedy.text.split(f" {unit} instead of")[0].split()[-1]
                amounts[resource] = dict(Shape.of(make_template(**{resource: text})).wanted)[resource]
        request = structs.replace(
            request, shape=replace(request.shape, wanted=tuple(amounts.items()), known={}, affinity_cache={})
        )
    return request


def _fields(found: Any) -> dict[str, Any]:
    return {
        "name": found.meta.name,
        "cpu": found.status.capacity.cpu_milli / 1000,
        "memory": found.status.capacity.memory_bytes,
        "labels": found.meta.labels,
        "taints": found.spec.taints,
    }


@settings(max_examples=60, deadline=None)
@given(nodes=st.lists(node, min_size=1, max_size=4), fields=wanted)
def test_a_proposed_remedy_works_when_applied(nodes: list[dict[str, Any]], fields: dict[str, Any]) -> None:
    table, request = table_of(nodes), request_of(fields)
    assume(not decide(PROFILE, request, table.snapshot()).node)
    before = counted(table)
    found = remedies(PROFILE, request, table)
    assert counted(table) == before
    assert decide(PROFILE, request, table.snapshot()).node == ""
    assert [each.cost for each in found] == sorted(each.cost for each in found)
    for remedy in found:
        if remedy.kind in {"uncordon", "end", "less"}:
            other = table_of(nodes)
            changed = carried_out(other, request, remedy)
            assert decide(PROFILE, changed, other.snapshot()).node == remedy.node, remedy


@settings(max_examples=40, deadline=None)
@given(nodes=st.lists(node, min_size=1, max_size=4), fields=wanted)
def test_one_megabyte_more_than_proposed_does_not_fit(nodes: list[dict[str, Any]], fields: dict[str, Any]) -> None:
    table, request = table_of(nodes), request_of(fields)
    assume(not decide(PROFILE, request, table.snapshot()).node)
    less = [each for each in remedies(PROFILE, request, table) if each.kind == "less" and " and " not in each.text]
    for remedy in less:
        changed = carried_out(table, request, remedy)
        (name,) = [each for each, amount in changed.shape.wanted if amount != dict(request.shape.wanted)[each]]
        amounts = dict(changed.shape.wanted)
        amounts[name] += 1 if name == "cpu" else MI
        greedy = structs.replace(
            changed, shape=replace(changed.shape, wanted=tuple(amounts.items()), known={}, affinity_cache={})
        )
        assert decide(PROFILE, greedy, table.snapshot()).node == ""


@settings(max_examples=60, deadline=None)
@given(nodes=st.lists(node, min_size=1, max_size=5), fields=wanted)
def test_the_best_of_the_score_table_is_what_is_chosen(nodes: list[dict[str, Any]], fields: dict[str, Any]) -> None:
    table, request = table_of(nodes), request_of(fields)
    decision = decide(PROFILE, request, table.snapshot())
    scores = score_table(PROFILE, decision.request or request, table.snapshot())
    steps, verdict, _ = steps_of(PROFILE, request, table.snapshot())
    assert bool(decision.node) == bool(scores) == bool(verdict.feasible.any())
    if scores:
        assert decision.node in {each.node for each in scores if each.total == scores[0].total}
        assert steps[-1].fits == int(verdict.feasible.sum())
