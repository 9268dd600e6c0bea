"""A node that a plugin rules out by itself is one that it refuses, and the other way round."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mandor.model.node import Node, NodePhase, Taint
from mandor.model.placement import Toleration
from mandor.placement.framework.incremental import IncrementalFilter
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.plugins.node_name import NodeName
from mandor.placement.plugins.node_unschedulable import NodeUnschedulable
from mandor.placement.plugins.taint_toleration import TaintToleration
from mandor.placement.profiles import default_profile
from tests.property.tables import NAMES, build, key, mask_of
from tests.scenarios.make import make_node, make_template

SHAPE = Shape.of(make_template())
effects = st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])
taints = st.lists(
    st.builds(Taint, st.sampled_from("ab"), st.just(""), effects),
    max_size=2,
    unique_by=lambda each: (each.key, each.effect),
)
tolerations = st.lists(st.builds(Toleration, st.sampled_from(["", "a", "b"])), max_size=2).map(tuple)


@st.composite
def nodes(draw: Any) -> list[Node]:
    made = []
    for name in NAMES[: draw(st.integers(1, 4))]:
        phase, cordoned = draw(st.sampled_from(NodePhase)), draw(st.booleans())
        node = make_node(name, phase=phase, cordoned=cordoned, taints=tuple(draw(taints)))
        pressure = draw(st.sampled_from([(), ("memory",)]))
        made.append(replace(node, status=replace(node.status, pressure=pressure)))
    return made


@settings(max_examples=200, deadline=None)
@given(nodes(), tolerations, st.integers(-1, 1), st.booleans(), st.sampled_from(["", *NAMES]))
def test_rules_out_agrees_with_the_filter(
    found: list[Node], tolerate: tuple[Toleration, ...], priority: int, daemon: bool, pin: str
) -> None:
    request = PlacementRequest(key(0), dataclasses.replace(SHAPE, tolerate=tolerate), priority, pin=pin, daemon=daemon)
    table = build(found, [])
    for plugin in default_profile().outright:
        passed = mask_of(plugin, request, table.snapshot())
        assert passed.tolist() == [not plugin.rules_out(request, node) for node in table.nodes], plugin.name


def test_plugins_that_depend_on_the_node_alone_can_rule_it_out() -> None:
    assert [type(each) for each in default_profile().outright] == [NodeUnschedulable, NodeName, TaintToleration]


@pytest.mark.req("S1-33")
def test_a_subclass_with_another_filter_does_not_inherit_rules_out() -> None:
    class Braver(NodeUnschedulable):
        name = "Braver"

        def filter_node(self, *given: object) -> bool:
            return True

    silent = make_node("n1", phase=NodePhase.DOWN)
    assert NodeUnschedulable().rules_out(PlacementRequest(key(0), SHAPE), silent)
    assert not Braver().rules_out(PlacementRequest(key(0), SHAPE), silent)
    assert Braver.rules_out is IncrementalFilter.rules_out
