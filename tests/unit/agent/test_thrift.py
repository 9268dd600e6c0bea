"""Questions to an engine take a share of its time, and no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mandor.agent.thrift import FREE_SECONDS, SHARE, WAIT_MOST, Thrift


def test_a_few_quick_questions_are_free() -> None:
    thrift = Thrift()
    for number in range(5):
        assert thrift.wait(number * 0.01) == 0
        thrift.spend(0.01, number * 0.01)


@given(st.lists(st.floats(0.001, 0.2), min_size=1, max_size=200))
def test_whoever_waits_as_told_uses_no_more_than_the_share(lasting: list[float]) -> None:
    thrift, now, asked = Thrift(), 0.0, 0.0
    for seconds in lasting:
        now += thrift.wait(now) + seconds
        asked += seconds
        thrift.spend(seconds, now)
    assert asked <= FREE_SECONDS + SHARE * now + max(lasting) + 1e-6


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=50))
def test_nobody_waits_longer_than_the_most(asked: list[tuple[float, float]]) -> None:
    thrift, now = Thrift(), 0.0
    for pause, seconds in asked:
        now += pause + seconds
        thrift.spend(seconds, now)
        assert thrift.wait(now) <= WAIT_MOST + 1e-6
