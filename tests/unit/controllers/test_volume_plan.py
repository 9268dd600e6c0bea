"""The plan for a volume, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.controllers.volume_plan import USERS_SHOWN, VolumeInputs, plan
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta
from mandor.model.node import Node, NodePhase
from mandor.model.volume import Volume, VolumeSpec, VolumeStatus
from mandor.store.base import Delete, Put
from tests.scenarios.make import make_instance, make_node


def make(spec: dict[str, Any] | None = None, **status: Any) -> Volume:
    return Volume(
        meta=Meta(name="data", namespace="default", uid="u", version=3),
        spec=VolumeSpec(**spec or {}),
        status=VolumeStatus(**status),
    )


def planned(
    volume: Volume, node: Node | None = None, users: tuple[Instance, ...] = (), *, owned: bool = True
) -> VolumeStatus | None:
    """The new status; None: unchanged."""
    writes = plan(VolumeInputs(volume, node, users, owned)).writes
    if not writes:
        return None
    (write,) = writes
    assert isinstance(write, Put)
    assert isinstance(write.value, Volume)
    return write.value.status


READY, DOWN = make_node("n1"), make_node("n1", phase=NodePhase.DOWN)


@pytest.mark.parametrize(
    ("status", "node", "phase"),
    [
        ({}, None, "Pending"),
        ({"node": "n1"}, READY, "Bound"),
        ({"node": "n1"}, None, "Bound"),
        ({"node": "n1", "path": "/x"}, READY, "Bound"),
        ({"node": "n1", "path": "/x"}, make_node("n1", phase=NodePhase.SUSPECT), "Bound"),
        ({"node": "n1", "path": "/x"}, DOWN, "Lost"),
        ({"node": "n1", "path": "/x"}, None, "Lost"),
    ],
)
def test_a_volume_with_data_is_lost_with_its_node(status: dict[str, Any], node: Node | None, phase: str) -> None:
    volume = make(**status)
    told = planned(volume, node) or volume.status
    assert told.phase == phase
    settled = volume.changed(status=told)
    assert planned(settled, node) is None, "a second look changes nothing"


def test_the_status_names_a_limited_number_of_users() -> None:
    volume = make(node="n1", phase="Bound")
    told = planned(volume, READY, tuple(make_instance(index) for index in range(2)))
    assert told is not None
    assert told.used_by == ("web-0", "web-1")
    many = planned(volume, READY, tuple(make_instance(index) for index in range(USERS_SHOWN + 7)))
    assert many is not None
    assert many.used_by[-1] == "and 7 more"


@pytest.mark.parametrize(
    ("reclaim", "workload", "owned", "used", "goes"),
    [
        ("delete", "web", False, False, True),
        ("delete", "web", False, True, False),
        ("delete", "web", True, False, False),
        ("delete", "", False, False, False),
        ("keep", "web", False, False, False),
    ],
)
def test_a_volume_is_deleted_with_its_workload_only_if_configured_and_unused(
    reclaim: str, workload: str, owned: bool, used: bool, goes: bool
) -> None:
    volume = make({"reclaim": reclaim}, node="n1", phase="Bound", workload=workload)
    users = (make_instance(0),) if used else ()
    writes = plan(VolumeInputs(volume, READY, users, owned)).writes
    assert (writes == [Delete(Key("volume", "default", "data"), 3)]) is goes


def test_a_lost_volume_is_recreated_only_if_configured() -> None:
    lost: dict[str, Any] = {"node": "n1", "path": "/x", "workload": "web", "incarnation": 2}
    anew = planned(make({"on_loss": "recreate"}, **lost), DOWN)
    assert anew == VolumeStatus(workload="web", incarnation=3)
    waits = planned(make(**lost), DOWN)
    assert waits is not None
    assert (waits.phase, waits.node, waits.path) == ("Lost", "n1", "/x")
