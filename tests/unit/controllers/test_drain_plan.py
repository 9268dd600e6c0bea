"""The orders of a drain, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.controllers.drain_plan import DrainInputs, Groups, plan_drain
from mandor.lib.steps import at_once
from mandor.model.instance import Instance
from mandor.model.node import Drain
from mandor.model.rollout import Rollout
from mandor.model.workload import Workload, WorkloadStatus
from mandor.placement.movable import may_move, whole
from mandor.store.base import Put
from tests.scenarios.make import NOW, make_instance, make_node, make_workload

OWN_DATA = {"data": {"type": "local", "per_instance": True}}


def ordered(workload: Workload, *here: Instance) -> list[str]:
    """The first step of each move, by instance."""
    seen = DrainInputs(make_node("n1"), here, lambda each: workload)
    draft = plan_drain(seen, Drain(), Groups(lambda name: here), NOW)
    written = (write.value for write in draft.writes if isinstance(write, Put))
    return [each.spec.move.first for each in written if isinstance(each, Instance) and each.spec.move is not None]


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({}, "start"),
        ({"ports": {"http": {"host": 80}}}, "start"),
        ({"update": {"order": "start-first"}}, "start"),
        ({"update": {"order": "stop-first"}}, "stop"),
        ({"gang": {"min": 1}}, "stop"),
        ({"volumes": OWN_DATA}, "stop"),
    ],
    ids=["plain", "port", "start-first", "stop-first", "gang", "volume"],
)
def test_an_instance_whose_replacement_cannot_run_beside_it_stops_first(fields: dict[str, Any], first: str) -> None:
    """A node port is free on every other node."""
    assert ordered(make_workload(**fields), make_instance(0, ready=True)) == [first]


def test_an_instance_of_a_deleted_group_gets_no_order_to_move() -> None:
    assert ordered(make_workload(), make_instance(0, group="other", ready=True)) == []


@pytest.mark.parametrize("order", ["start-first", "stop-first"])
def test_only_start_first_instances_move_to_a_better_node(order: str) -> None:
    done = Rollout(phase="Done", release="web.1", target="web.1")
    workload = make_workload(update={"order": order}).changed(status=WorkloadStatus(phase="Running", rollout=done))
    one = make_instance(0, ready=True)
    assert may_move(one, workload, at_once(whole([one]))) == (order == "start-first")
