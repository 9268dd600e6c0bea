"""A board forgets what is gone, and goes on counting what is still there."""

from mandor.model.phase import Phase
from mandor.placement.board import Board
from tests.scenarios.make import make_instance, make_node, make_stored_release, make_workload


def test_whose_release_is_gone_asks_for_nothing_and_counts_for_what_it_did() -> None:
    workload = make_workload("web", cpu="1")
    release = make_stored_release(workload)
    placed, waits = make_instance(0), make_instance(1, Phase.PENDING)
    board = Board([make_node("n1", cpu=4), workload, release, placed, waits])
    free = board.table.free("n1")["cpu"]
    assert board.ask(waits) is not None

    board.remove(release.key)
    assert board.ask(waits) is None
    board.put(make_instance(0, Phase.STOPPING))
    assert board.table.free("n1")["cpu"] == free
    board.remove(placed.key)
    assert board.table.free("n1")["cpu"] == free + 1_000
