"""Ranges: many numbers in a few characters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mandor.lib.ranges import parse, shown


def test_they_are_shown_as_people_write_them() -> None:
    assert shown([7, 0, 1, 2, 4, 3]) == "0-4,7"
    assert shown([]) == ""


@given(st.sets(st.integers(0, 300)))
def test_what_is_shown_is_read_back(numbers: set[int]) -> None:
    assert parse(shown(numbers)) == numbers
