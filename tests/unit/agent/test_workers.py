"""What happens to an instance that the control plane does not list."""

from __future__ import annotations

import pytest

from mandor.agent.feed import Source
from mandor.agent.workers import judge_missing
from tests.unit.agent.make import make_order

SAME = Source("c1", 3, 100)


@pytest.mark.parametrize(
    ("source", "forget", "verdict"),
    [
        (SAME, 0, "gone"),
        (Source("c1", 4, 200), 0, "held"),
        (Source("c1", 2, 200), 0, "held"),
        (Source("c1", 4, 200), 3, "held"),
        (Source("c1", 4, 200), 4, "gone"),
        (Source("c2", 3, 200), 0, "held"),
        (Source("c2", 3, 200), 9, "held"),
        (Source("c1", 3, 4), 0, "held"),
        (Source("c1", 3, 5), 0, "gone"),
    ],
)
def test_only_the_cluster_and_epoch_that_gave_an_order_can_withdraw_it(
    source: Source, forget: int, verdict: str
) -> None:
    assert judge_missing(make_order(epoch=3, version=5), source, forget)[0] == verdict


@pytest.mark.parametrize(("forget", "verdict"), [(0, "held"), (1, "gone")])
def test_units_without_an_order_are_held_unless_the_node_may_forget_them(forget: int, verdict: str) -> None:
    assert judge_missing(None, SAME, forget)[0] == verdict
