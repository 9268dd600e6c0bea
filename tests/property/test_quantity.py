"""Quantities read back what they show."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.lib.quantity import Cpu, Seconds, SecondsOrNever, Size


@given(st.integers(0, 2**53))
def test_cpu_reads_back_what_it_shows(milli: int) -> None:
    assert Cpu.parse(str(Cpu(milli))) == Cpu(milli)


@given(st.integers(0, 2**62))
def test_a_size_reads_back_what_it_shows(count: int) -> None:
    assert Size.parse(str(Size(count))) == Size(count)


@given(st.integers(1, 4095), st.sampled_from(["Ki", "Mi", "Gi", "Ti", "kB", "MB", "GB", "TB"]))
def test_a_size_with_a_unit_is_never_shown_longer_than_it_was_written(count: int, unit: str) -> None:
    text = f"{count}{unit}"
    assert len(str(Size.parse(text))) <= len(text)


@given(st.integers(0, 10**12))
def test_a_duration_reads_back_what_it_shows(milli: int) -> None:
    duration = Seconds(milli / 1000)
    assert str(Seconds.parse(str(duration))) == str(duration)
    assert float(Seconds.parse(str(duration))) == pytest.approx(float(duration))


@given(st.text(max_size=20))
def test_any_text_is_an_amount_or_a_value_error(text: str) -> None:
    for kind in (Cpu, Size, Seconds, SecondsOrNever):
        try:
            amount = kind.parse(text)
        except ValueError:
            continue
        assert amount >= 0
        assert kind.parse(str(amount)) == pytest.approx(amount, abs=0.001)


@given(st.integers() | st.floats())
def test_any_number_is_an_amount_or_a_value_error(number: float) -> None:
    for kind in (Cpu, Size, Seconds):
        try:
            assert kind.parse(number) >= 0
        except ValueError:
            continue
