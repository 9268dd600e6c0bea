"""Trace context of the W3C: what is honoured, what is not, and which traces are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.telemetry.context import SpanContext, chosen, new_span_id, new_trace_id, parse_header

HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NONE = "0" * 32


def test_a_header_names_the_trace_the_span_and_whether_it_is_recorded() -> None:
    found = parse_header(HEADER)
    assert found == SpanContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", sampled=True)
    assert found is not None
    assert found.header == HEADER
    unsampled = parse_header(HEADER[:-1] + "0")
    assert unsampled is not None
    assert not unsampled.sampled


def test_a_later_version_may_show_more() -> None:
    found = parse_header("cc" + HEADER[2:] + "-what-the-future-will-be-like")
    assert found is not None
    assert found.span_id == "b7ad6b7169203331"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "ff" + HEADER[2:],
        HEADER + "-more",
        HEADER.replace("0af7651916cd43dd8448eb211c80319c", NONE),
        HEADER.replace("b7ad6b7169203331", NONE[:16]),
        HEADER[:-3],
        HEADER.replace("-", "_"),
    ],
)
def test_what_is_no_context_is_none(header: str | None) -> None:
    assert parse_header(header) is None


@given(st.text(max_size=80))
def test_whatever_stands_in_a_header_is_a_context_or_none(text: str) -> None:
    found = parse_header(text)
    assert found is None or parse_header(found.header) == found


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_trace_that_is_kept_at_one_share_is_kept_at_every_larger(one: float, two: float) -> None:
    trace = new_trace_id()
    assert chosen(trace, min(one, two)) <= chosen(trace, max(one, two))
    assert not chosen(trace, 0.0)
    assert chosen(trace, 1.0)


def test_ids_have_their_length_and_are_not_zero() -> None:
    made = [parse_header(SpanContext(new_trace_id(), new_span_id()).header) for _ in range(100)]
    assert len({each.span_id for each in made if each is not None}) == 100
