"""Selectors: what each form picks, and that a parsed one agrees with a plain reading of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.api.selector import parse_selector
from mandor.errors import Invalid

WORDS = ["a", "b", "c"]
labels = st.dictionaries(st.sampled_from(WORDS), st.sampled_from(["x", "y", "z"]))
term = st.tuples(
    st.sampled_from(["=", "!=", "in", "notin", "there", "gone"]), st.sampled_from(WORDS), st.sampled_from("xyz")
)


def write(verb: str, key: str, value: str) -> str:
    forms = {
        "=": f"{key}={value}",
        "!=": f"{key} != {value}",
        "in": f"{key} in ({value}, w)",
        "notin": f"{key} notin ({value},w)",
        "there": key,
        "gone": f"!{key}",
    }
    return forms[verb]


def holds(verb: str, key: str, value: str, given: dict[str, str]) -> bool:
    if verb in {"=", "in"}:
        return given.get(key) == value
    if verb in {"!=", "notin"}:
        return given.get(key) != value
    return (key in given) == (verb == "there")


@given(st.lists(term, max_size=5), labels)
def test_a_selector_holds_when_all_its_terms_do(
    terms: list[tuple[str, str, str]], given_labels: dict[str, str]
) -> None:
    text = " , ".join(write(*each) for each in terms)
    assert parse_selector(text).matches(given_labels) == all(holds(*each, given_labels) for each in terms)


@pytest.mark.parametrize(
    "text", ["=x", "a=b=c", "a in x", "a in (x", "in (x)", "a,,b", ",", "a b", "a=(x)", "!!a", "a in (x) b", "(", "a;b"]
)
def test_what_cannot_be_read_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_selector(text)
    assert caught.value.hint


def test_a_selector_is_bounded() -> None:
    with pytest.raises(Invalid):
        parse_selector(",".join(f"a{number}=x" for number in range(100)))


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_selector(text).matches({"a": "x"})
    except Invalid:
        return
