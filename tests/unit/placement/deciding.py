"""One instance, a few nodes, and a decision by nothing but the plugins of a test."""

from __future__ import annotations

from typing import Any

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.cycle import decide
from mandor.placement.decision import Decision
from mandor.placement.framework.points import Plugin
from mandor.placement.framework.profile import Enabled, Profile
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.plugins.priority_sort import PrioritySort
from mandor.placement.table import Table
from tests.scenarios.make import make_node, make_template

ASK = PlacementRequest(Key(Instance.kind, "default", "web-0"), Shape.of(make_template(cpu="1")))


def make_table(count: int = 3) -> Table:
    table = Table()
    for index in range(count):
        table.set_node(make_node(f"n{index}", cpu=index + 1))
    return table


def run(*plugins: Plugin, table: Table | None = None, **options: Any) -> Decision:
    profile = Profile("test", [Enabled(PrioritySort()), *map(Enabled, plugins)])
    return decide(profile, ASK, (table or make_table()).snapshot(), **options)
