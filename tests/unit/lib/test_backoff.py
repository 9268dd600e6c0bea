"""Growing pauses."""

from mandor.lib.backoff import Backoff


def test_a_pause_doubles_up_to_the_most() -> None:
    growing = Backoff(10, 300)
    assert [growing.pause(n) for n in range(1, 8)] == [10, 20, 40, 80, 160, 300, 300]


def test_a_million_failures_are_no_trouble() -> None:
    assert Backoff(0.1, 60).pause(1_000_000) == 60


def test_no_failure_counts_as_one() -> None:
    assert Backoff(1, 10).pause(0) == Backoff(1, 10).pause(1) == 1


def test_jitter_spreads_by_its_share_either_way() -> None:
    spread = Backoff(10, 100, jitter=0.2)
    assert spread.pause(1, chance=0.0) == 8
    assert spread.pause(1, chance=0.5) == 10
    assert spread.pause(1, chance=1.0) == 12
    assert all(8 <= spread.pause(1) <= 12 for _ in range(100))
