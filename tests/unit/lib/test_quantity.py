"""Amounts as people write them."""

import math

import pytest

from mandor.lib.quantity import NEVER, Cpu, Seconds, SecondsOrNever, Size


@pytest.mark.parametrize(
    ("text", "milli", "shown"),
    [
        ("500m", 500, "500m"),
        ("0.5", 500, "500m"),
        ("1.5", 1500, "1500m"),
        ("2", 2000, "2"),
        ("2000m", 2000, "2"),
        (2, 2000, "2"),
        (0.25, 250, "250m"),
        ("0", 0, "0"),
        (" 3 ", 3000, "3"),
        ("0.0001", 0, "0"),
        ("0.0015", 2, "2m"),
    ],
)
def test_cpu_is_cores_or_thousandths(text: str | float, milli: int, shown: str) -> None:
    assert int(Cpu.parse(text)) == milli
    assert str(Cpu.parse(text)) == shown


@pytest.mark.parametrize(
    ("text", "count", "shown"),
    [
        ("256Mi", 256 << 20, "256Mi"),
        ("2GB", 2_000_000_000, "2GB"),
        ("2G", 2_000_000_000, "2GB"),
        ("1.5Gi", 1536 << 20, "1536Mi"),
        ("1k", 1000, "1kB"),
        ("1K", 1000, "1kB"),
        ("1KiB", 1024, "1Ki"),
        ("1024", 1024, "1Ki"),
        (1024, 1024, "1Ki"),
        ("7", 7, "7"),
        ("7B", 7, "7"),
        ("0", 0, "0"),
        ("1 GiB", 1 << 30, "1Gi"),
        ("3Pi", 3 << 50, "3Pi"),
    ],
)
def test_a_size_is_bytes_with_a_unit(text: str | int, count: int, shown: str) -> None:
    assert int(Size.parse(text)) == count
    assert str(Size.parse(text)) == shown


@pytest.mark.parametrize(
    ("text", "seconds", "shown"),
    [
        ("30s", 30, "30s"),
        ("1h30m", 5400, "1h30m"),
        ("250ms", 0.25, "250ms"),
        ("1.5s", 1.5, "1s500ms"),
        ("90", 90, "1m30s"),
        (90, 90, "1m30s"),
        (0.5, 0.5, "500ms"),
        ("2d", 172800, "2d"),
        ("0", 0, "0s"),
        ("1d2h3m4s5ms", 93784.005, "1d2h3m4s5ms"),
    ],
)
def test_a_duration_adds_its_parts_up(text: str | float, seconds: float, shown: str) -> None:
    assert float(Seconds.parse(text)) == pytest.approx(seconds)
    assert str(Seconds.parse(text)) == shown


@pytest.mark.parametrize(
    "text", ["", "m", "5x", "-1", "1,5", "1e3", "500 m m", "0x10", "٣", "1_000", "Inf", "nan", "."]
)
def test_what_is_no_amount_is_refused_by_every_kind(text: str) -> None:
    for kind in (Cpu, Size, Seconds):
        with pytest.raises(ValueError, match=r"is not|out of range"):
            kind.parse(text)


@pytest.mark.parametrize("value", [-1, -0.5, math.inf, math.nan, 1e30, True, False])
def test_numbers_out_of_range_are_refused(value: float) -> None:
    for kind in (Cpu, Size, Seconds):
        with pytest.raises(ValueError, match="amount"):
            kind.parse(value)


def test_an_error_shows_what_to_write() -> None:
    with pytest.raises(ValueError, match=r"'5Zi' is not a size; write bytes with a unit: `256Mi`, `2GB`"):
        Size.parse("5Zi")


def test_a_unit_of_another_kind_is_refused() -> None:
    for kind, text in ((Cpu, "5Mi"), (Cpu, "5s"), (Size, "5m"), (Size, "5s"), (Seconds, "5Mi"), (Cpu, "500MHz")):
        with pytest.raises(ValueError, match="is not"):
            kind.parse(text)


def test_never_is_longer_than_any_duration() -> None:
    assert SecondsOrNever.parse("never") == NEVER
    assert str(NEVER) == "never"
    assert Seconds.parse("10000d") < NEVER
    assert str(SecondsOrNever.parse("5m")) == "5m"
    with pytest.raises(ValueError, match="is not a duration"):
        Seconds.parse("never")


def test_amounts_are_numbers() -> None:
    assert Cpu.parse("500m") + Cpu.parse("1") == 1500
    assert Size.parse("1Ki") * 2 == 2048
    assert max(Seconds(5), Seconds(7)) == Seconds(7)
