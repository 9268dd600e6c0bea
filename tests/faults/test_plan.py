"""A plan of faults is a seed's own, and misses no kind."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.faults.plan import KINDS, make_plan

seeds = st.integers(0, 2**32 - 1)


@given(seeds)
def test_the_same_seed_has_the_same_faults(seed: int) -> None:
    assert make_plan(seed, rounds=2, lease=3.0) == make_plan(seed, rounds=2, lease=3.0)


@given(seeds, st.integers(1, 3))
def test_every_kind_happens_once_a_round(seed: int, rounds: int) -> None:
    assert Counter(each.kind for each in make_plan(seed, rounds=rounds, lease=3.0)) == dict.fromkeys(KINDS, rounds)


@given(seeds)
def test_a_leader_is_gone_for_longer_than_its_lease(seed: int) -> None:
    for each in make_plan(seed, rounds=1, lease=3.0):
        if each.kind in {"kill the leader", "pause the leader", "pause agents"}:
            assert each.lasts > 3.0


def test_what_the_machine_cannot_do_is_left_out() -> None:
    left = {each.kind for each in make_plan(1, rounds=1, lease=3.0, able=())}
    assert left == {name for name, kind in KINDS.items() if not kind.needs}
