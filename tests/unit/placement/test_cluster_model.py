"""A board forgets what is gone, and goes on counting what is still there."""

import gc
from weakref import ref

import pytest

from mandor.lib.steps import at_once
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.model.record import Namespace
from mandor.placement import conversion
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.conversion import shapes_of
from mandor.placement.cycle import decide
from mandor.placement.profiles import default_profile
from tests.scenarios.make import make_instance, make_node, make_stored_release, make_workload


def test_an_instance_without_its_release_keeps_its_allocation_and_has_no_request() -> None:
    workload = make_workload("web", cpu="1")
    release = make_stored_release(workload)
    placed, waits = make_instance(0), make_instance(1, Phase.PENDING)
    board = ClusterModel([make_node("n1", cpu=4), workload, release, placed, waits])
    free = board.table.free("n1")["cpu"]
    assert board.request(waits) is not None

    board.remove(release.key)
    assert board.request(waits) is None
    board.put(make_instance(0, Phase.STOPPING))
    assert board.table.free("n1")["cpu"] == free
    board.remove(placed.key)
    assert board.table.free("n1")["cpu"] == free + 1_000


def test_a_board_that_is_dismantled_leaves_no_garbage() -> None:
    workload = make_workload(replicas=2)
    placed = [make_instance(index, ready=True) for index in range(2)]
    board = ClusterModel([workload, make_stored_release(workload), make_node("n1"), *placed])
    table = ref(board.table)
    gc.collect()
    gc.disable()
    try:
        at_once(board.dismantle())
        del board
        assert table() is None
    finally:
        gc.enable()


def test_shapes_are_made_once_for_one_specification_and_forgotten_when_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conversion, "_shapes", {})
    monkeypatch.setattr(conversion, "_SHAPES_MOST", 2)
    small, large = (make_stored_release(make_workload(name, cpu=cpu)) for name, cpu in (("a", "1"), ("b", "2")))
    made = shapes_of(small)
    assert shapes_of(small.changed()) is made, "another version with the very same specification"
    assert shapes_of(large) is not made
    third = shapes_of(make_stored_release(make_workload("c", cpu="1")))
    assert third is not made
    assert len(conversion._shapes) == 2
    assert shapes_of(small) is not made
    assert shapes_of(small)["main"].wanted == made["main"].wanted


@pytest.mark.req("S3-31")
def test_a_rule_follows_the_labels_of_namespaces() -> None:
    """The instance is placed before its namespace gets the label that the rule of another namespace selects."""
    there = make_workload("there")
    placed = make_instance(0, workload="there", release="there.1")
    rule = {"apart": [{"workload": "*", "namespace_labels": ["team == red"]}]}
    rival = make_workload("rival", placement=rule).changed(meta=Meta(name="rival", namespace="x", uid="uid-rival"))
    waits = make_instance(0, Phase.PENDING, workload="rival", release="rival.1")
    waits = waits.changed(meta=Meta(name="rival-0", namespace="x"))
    model = ClusterModel(
        [make_node("n1"), there, make_stored_release(there), placed, rival, make_stored_release(rival), waits]
    )

    def node() -> str | None:
        request = model.request(waits)
        assert request is not None
        return decide(default_profile(), request, model.table.snapshot()).node

    assert node() == "n1"
    model.put(Namespace(meta=Meta(name="default", labels={"team": "red"})))
    assert not node()
    model.put(Namespace(meta=Meta(name="default", labels={"team": "blue"})))
    assert node() == "n1"
