"""Which nodes are home to a daemon, case by case."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mandor.model.node import Capabilities, Drain, Node, NodePhase, Taint
from mandor.placement.framework.ask import Shape
from mandor.placement.home import Fit, Site, judge
from tests.scenarios.make import DOCKER, make_node, make_template

DOWN = {"docker": Capabilities(version="27", images=True, up=False)}


def drained() -> Node:
    node = make_node("n")
    return node.changed(spec=replace(node.spec, drain=Drain()))


CASES: list[tuple[str, dict[str, Any], Node, Fit, str]] = [
    ("any node", {}, make_node("n"), Fit.HOME, ""),
    ("a cordoned node is one", {}, make_node("n", cordoned=True), Fit.HOME, ""),
    ("room does not matter", {"memory": "64Gi"}, make_node("n"), Fit.HOME, ""),
    (
        "a soft rule does not matter",
        {"where": [{"rule": "a == b", "strength": "should"}]},
        make_node("n"),
        Fit.HOME,
        "",
    ),
    ("a taint that only asks", {}, make_node("n", taints=(Taint("a", "", "PreferNoSchedule"),)), Fit.HOME, ""),
    ("another pool", {"placement": {"pool": "gpu"}}, make_node("n"), Fit.NONE, "not in the pool gpu"),
    ("a soft pool", {"placement": {"pool": {"name": "gpu", "strength": "prefer"}}}, make_node("n"), Fit.HOME, ""),
    ("a rule", {"where": [{"rule": "disk == ssd"}]}, make_node("n"), Fit.NONE, "not `disk == ssd`"),
    ("any of two", {"where": [{"any": ["a == b", "node == n"]}]}, make_node("n"), Fit.HOME, ""),
    (
        "a rule on engines",
        {"where": [{"rule": "engine == docker"}]},
        make_node("n"),
        Fit.NONE,
        "not `engine == docker`",
    ),
    ("a taint", {}, make_node("n", taints=(Taint("a", "b"),)), Fit.KEPT, "with the taint a=b:NoSchedule"),
    ("told to", {"placement": {"tolerate": [{"key": "a"}]}}, make_node("n", taints=(Taint("a", "b"),)), Fit.HOME, ""),
    (
        "told to, for a while",
        {"placement": {"tolerate": [{"key": "a", "seconds": "5m"}]}},
        make_node("n", taints=(Taint("a", "", "NoExecute"),)),
        Fit.KEPT,
        "with the taint a:NoExecute",
    ),
    ("drained", {}, drained(), Fit.KEPT, "drained"),
    ("silent for a while", {}, make_node("n", phase=NodePhase.SUSPECT), Fit.HOME, ""),
    ("lost", {}, make_node("n", phase=NodePhase.DOWN), Fit.KEPT, "Down"),
    ("no engine", {"image": "x"}, make_node("n"), Fit.KEPT, "without an engine that is up and runs it"),
    ("it is down", {"image": "x"}, make_node("n", engines=DOWN), Fit.KEPT, "without an engine that is up and runs it"),
    (
        "another form",
        {"image": "x", "alternatives": [{"engine": ["docker"]}]},
        make_node("n", engines=DOCKER),
        Fit.HOME,
        "",
    ),
]


@pytest.mark.parametrize(
    ("fields", "node", "fit", "why"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_node_is_home_by_what_it_is(fields: dict[str, Any], node: Node, fit: Fit, why: str) -> None:
    template = make_template(**fields)
    assert judge(template, Shape.of(template), node) == (fit, why)


def test_the_reasons_of_all_nodes_are_counted() -> None:
    template = make_template(where=[{"rule": "disk == ssd"}])
    nodes = [make_node(f"n{number}") for number in range(3)]
    assert Site.of(template, ()).refusal == "no node matches: there are none"
    assert Site.of(template, nodes).refusal == "no node matches: 3 not `disk == ssd`"
    good = make_node("good", labels={"disk": "ssd"})
    assert Site.of(template, [*nodes[:1], good]).refusal == "1 of 2 nodes does not match: 1 not `disk == ssd`"
    assert Site.of(template, [good]).refusal == ""
