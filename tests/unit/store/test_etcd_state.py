"""What has changed while nobody followed etcd is told in order, a few at a time, and no revision in parts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.lib.steps import FEW
from mandor.model.meta import Object
from mandor.store.base import Change
from tests.scenarios.make import make_node

pytest.importorskip("grpc")

from mandor.store.etcd_state import in_pieces

SINCE = 10


def make_changes(revisions: list[int]) -> list[Change]:
    return [Change(each, None, make_node(f"new-{place}", version=each)) for place, each in enumerate(revisions)]


def make_gone(count: int) -> list[Object]:
    return [make_node(f"gone-{number}", version=1) for number in range(count)]


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(0, 30), st.integers(0, 5))
def test_nothing_is_missing_and_no_revision_is_told_in_parts(steps: list[int], gone: int, rest: int) -> None:
    changed = make_changes(sorted(SINCE + each for each in steps))
    until = max((each.revision for each in changed), default=SINCE) + rest
    if gone and until == SINCE:
        until += 1
    told = list(in_pieces(changed[:], make_gone(gone), SINCE, until))
    assert all(told)
    for before, after in pairwise(told):
        assert before[-1].revision < after[0].revision
    everything = [each for piece in told for each in piece]
    assert [each for each in everything if each.after is not None] == changed
    assert {each.value.meta.name for each in everything if each.after is None} == {
        each.meta.name for each in make_gone(gone)
    }
    revisions = [each.revision for each in everything]
    assert revisions == sorted(revisions)
    assert all(SINCE < each <= until for each in revisions)


def test_very_many_are_told_a_few_at_a_time() -> None:
    changed = make_changes([SINCE + 1000 + number // 100 for number in range(10 * FEW)])
    told = list(in_pieces(changed, make_gone(10 * FEW), SINCE, SINCE + 5000))
    assert max(map(len, told)) <= FEW + 100
