"""Token buckets and read positions: no more than the rate, and every line exactly once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.agent.shipping.delivery import TokenBucket
from mandor.agent.shipping.line import TEXT_MOST, clean_text
from mandor.agent.shipping.shipper import ReadPosition, ResumeFilter

times = st.lists(st.integers(0, 2000), min_size=1, max_size=200).map(lambda found: [each / 100 for each in found])


@pytest.mark.req("S2-40")
@given(times.map(sorted), st.integers(1, 20))
def test_no_interval_passes_more_than_rate_and_burst(at: list[float], rate: int) -> None:
    bucket = TokenBucket(rate)
    taken = [each for each in at if bucket.take(each)]
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= 2 * rate + rate * (taken[last] - taken[first]) + 1e-6


@given(times, st.integers(1, 20))
def test_every_line_passes_or_is_counted_as_dropped(at: list[float], rate: int) -> None:
    bucket = TokenBucket(rate)
    taken = sum(bucket.take(each) for each in at)
    assert taken + bucket.take_dropped() == len(at)
    assert bucket.take_dropped() == 0


def test_lines_below_the_rate_always_pass_whenever_they_are_read() -> None:
    bucket = TokenBucket(10)
    assert all(bucket.take(1_700_000_000 + number / 10) for number in range(1000))


@given(st.lists(st.integers(0, 5), max_size=60).map(sorted), st.data())
def test_a_log_that_is_read_in_pieces_is_read_once(at: list[int], data: st.DataObject) -> None:
    """Each part is read from the time of the last line on, as engines allow."""
    place = ReadPosition()
    read: list[int] = []
    numbered = [(float(each), number) for number, each in enumerate(at)]
    while len(read) < len(numbered):
        most = data.draw(st.integers(1, 10))
        resumed = ResumeFilter(place)
        fresh = [each for each in numbered if each[0] >= place.at and resumed.fresh(each[0])][:most]
        assert fresh, "something is left, and is not found"
        for when, number in fresh:
            place = place.after(when)
            read.append(number)
    assert read == list(range(len(numbered)))


def test_lines_with_earlier_times_after_the_position_are_new() -> None:
    resumed = ResumeFilter(ReadPosition(10.0, 2))
    assert [resumed.fresh(at) for at in (9.0, 10.0, 10.0, 10.0, 8.0)] == [False, False, False, True, True]


def test_a_line_that_is_too_long_is_cut_and_marked() -> None:
    assert clean_text(b"a\xffb") == "a\N{REPLACEMENT CHARACTER}b"
    assert clean_text(b"x" * (TEXT_MOST + 3)).endswith("… (3 more bytes)")
