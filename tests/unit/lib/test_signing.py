"""Signed messages: genuine ones pass, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.lib.signing import AGE_SECONDS_MOST, SIGNATURE, TIMESTAMP, sign, verify

NOW = 1_800_000_000.0


@given(st.binary(min_size=1), st.binary(), st.floats(-AGE_SECONDS_MOST + 1, AGE_SECONDS_MOST - 1))
def test_what_was_signed_is_genuine_for_a_while(secret: bytes, body: bytes, passed: float) -> None:
    assert verify(secret, body, sign(secret, body, NOW), NOW + passed)


@given(st.binary(min_size=1), st.binary(), st.binary())
def test_another_body_or_another_secret_is_refused(secret: bytes, body: bytes, other: bytes) -> None:
    headers = sign(secret, body, NOW)
    assert verify(secret, other, headers, NOW) == (other == body)
    assert not verify(secret + b"x", body, headers, NOW)


@pytest.mark.parametrize("passed", [AGE_SECONDS_MOST + 2, -AGE_SECONDS_MOST - 2])
def test_what_is_old_or_from_the_future_is_refused(passed: float) -> None:
    assert not verify(b"s", b"body", sign(b"s", b"body", NOW), NOW + passed)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {TIMESTAMP: "now", SIGNATURE: "v1=00"},
        {TIMESTAMP: "1800000000"},
        {TIMESTAMP: "1800000000", SIGNATURE: ""},
        {TIMESTAMP: "1800000000", SIGNATURE: "v2=00"},
        {TIMESTAMP: "9" * 5000, SIGNATURE: "v1=00"},
        {TIMESTAMP: "１８０００００000", SIGNATURE: "v1=00"},
    ],
)
def test_broken_headers_are_refused_and_break_nothing(headers: dict[str, str]) -> None:
    assert not verify(b"s", b"body", headers, NOW)


def test_one_of_several_signatures_is_enough_and_names_are_not_case_sensitive() -> None:
    headers = sign(b"new", b"body", NOW)
    headers = {name.lower(): value for name, value in headers.items()}
    headers[SIGNATURE.lower()] = f"v1=00 {headers[SIGNATURE.lower()]}"
    assert verify(b"new", b"body", headers, NOW)
