"""Which nodes are home to a daemon, case by case."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mandor.model.node import Capabilities, Drain, Node, NodePhase, Taint
from mandor.placement.daemon_nodes import DaemonNodes, Eligibility, assess_node
from mandor.placement.framework.request import Shape
from tests.scenarios.make import DOCKER, make_node, make_template

DOWN = {"docker": Capabilities(version="27", images=True, up=False)}


def drained() -> Node:
    node = make_node("n")
    return node.changed(spec=replace(node.spec, drain=Drain()))


CASES: list[tuple[str, dict[str, Any], Node, Eligibility, str]] = [
    ("any node", {}, make_node("n"), Eligibility.ELIGIBLE, ""),
    ("a cordoned node is one", {}, make_node("n", cordoned=True), Eligibility.ELIGIBLE, ""),
    ("room does not matter", {"memory": "64Gi"}, make_node("n"), Eligibility.ELIGIBLE, ""),
    (
        "a soft rule does not matter",
        {"where": [{"rule": "a == b", "strength": "should"}]},
        make_node("n"),
        Eligibility.ELIGIBLE,
        "",
    ),
    (
        "a taint that only asks",
        {},
        make_node("n", taints=(Taint("a", "", "PreferNoSchedule"),)),
        Eligibility.ELIGIBLE,
        "",
    ),
    ("another pool", {"placement": {"pool": "gpu"}}, make_node("n"), Eligibility.INELIGIBLE, "not in the pool gpu"),
    (
        "a soft pool",
        {"placement": {"pool": {"name": "gpu", "strength": "prefer"}}},
        make_node("n"),
        Eligibility.ELIGIBLE,
        "",
    ),
    ("a rule", {"where": [{"rule": "disk == ssd"}]}, make_node("n"), Eligibility.INELIGIBLE, "not `disk == ssd`"),
    ("any of two", {"where": [{"any": ["a == b", "node == n"]}]}, make_node("n"), Eligibility.ELIGIBLE, ""),
    (
        "a rule on engines",
        {"where": [{"rule": "engine == docker"}]},
        make_node("n"),
        Eligibility.INELIGIBLE,
        "not `engine == docker`",
    ),
    ("a taint", {}, make_node("n", taints=(Taint("a", "b"),)), Eligibility.RETAINED, "with the taint a=b:NoSchedule"),
    (
        "told to",
        {"placement": {"tolerate": [{"key": "a"}]}},
        make_node("n", taints=(Taint("a", "b"),)),
        Eligibility.ELIGIBLE,
        "",
    ),
    (
        "told to, for a while",
        {"placement": {"tolerate": [{"key": "a", "seconds": "5m"}]}},
        make_node("n", taints=(Taint("a", "", "NoExecute"),)),
        Eligibility.RETAINED,
        "with the taint a:NoExecute",
    ),
    ("drained", {}, drained(), Eligibility.RETAINED, "drained"),
    ("silent for a while", {}, make_node("n", phase=NodePhase.SUSPECT), Eligibility.ELIGIBLE, ""),
    ("lost", {}, make_node("n", phase=NodePhase.DOWN), Eligibility.RETAINED, "Down"),
    ("no engine", {"image": "x"}, make_node("n"), Eligibility.RETAINED, "without an engine that is up and runs it"),
    (
        "it is down",
        {"image": "x"},
        make_node("n", engines=DOWN),
        Eligibility.RETAINED,
        "without an engine that is up and runs it",
    ),
    (
        "another form",
        {"image": "x", "alternatives": [{"engine": ["docker"]}]},
        make_node("n", engines=DOCKER),
        Eligibility.ELIGIBLE,
        "",
    ),
]


@pytest.mark.parametrize(
    ("fields", "node", "fit", "why"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_eligibility_depends_on_node_attributes(fields: dict[str, Any], node: Node, fit: Eligibility, why: str) -> None:
    template = make_template(**fields)
    assert assess_node(template, Shape.of(template), node) == (fit, why)


def test_the_reasons_of_all_nodes_are_counted() -> None:
    template = make_template(where=[{"rule": "disk == ssd"}])
    nodes = [make_node(f"n{number}") for number in range(3)]
    assert DaemonNodes.of(template, ()).refusal == "no node matches: there are none"
    assert DaemonNodes.of(template, nodes).refusal == "no node matches: 3 not `disk == ssd`"
    good = make_node("good", labels={"disk": "ssd"})
    assert DaemonNodes.of(template, [*nodes[:1], good]).refusal == "1 of 2 nodes does not match: 1 not `disk == ssd`"
    assert DaemonNodes.of(template, [good]).refusal == ""
