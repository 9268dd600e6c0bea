"""What is sealed is read with its key, about its thing, and in no other way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.lib.sealing import Sealer, Unsealable

KEY = Sealer(bytes(range(32)))


@given(text=st.text(max_size=200), about=st.text(max_size=40))
def test_what_was_sealed_is_read_again(text: str, about: str) -> None:
    sealed = KEY.seal(text, about)
    assert KEY.open(sealed, about) == text
    assert len(text) < 4 or text not in sealed


def test_the_same_text_is_sealed_differently_every_time() -> None:
    assert KEY.seal("hunter2", "a") != KEY.seal("hunter2", "a")


@pytest.mark.parametrize("about", ["b", "", "secret default/b value"])
def test_what_is_about_one_thing_is_no_use_for_another(about: str) -> None:
    with pytest.raises(Unsealable, match="damaged"):
        KEY.open(KEY.seal("hunter2", "a"), about)


def test_another_key_reports_it() -> None:
    other = Sealer.of("another")
    with pytest.raises(Unsealable, match=f"sealed with the key {KEY.key_id}, and this is {other.key_id}"):
        other.open(KEY.seal("hunter2", "a"), "a")


@pytest.mark.parametrize("text", ["", "x", "v1", "v1.", f"v1.{KEY.key_id}.", f"v1.{KEY.key_id}.%%", "v2.a.b"])
def test_unsealed_values_are_not_read(text: str) -> None:
    with pytest.raises(Unsealable):
        KEY.open(text, "a")


def test_a_key_has_its_length() -> None:
    with pytest.raises(ValueError, match="32 bytes, this one has 3"):
        Sealer(b"abc")
