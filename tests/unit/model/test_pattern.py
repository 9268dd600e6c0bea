"""Regular expressions in rules: useful ones work, and none can keep the scheduler busy."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.model.pattern import TEXT_MOST, check_pattern, found
from mandor.model.rule import parse_rule


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^web-\d+$", "web-17"),
        (r"^\d+\.\d+\.\d+", "5.10.12-amd64"),
        (r"^(eu|us)-(west|east)-?[0-9]?$", "eu-west-1"),
        (r"(?P<vendor>intel|amd).*@ \d\.\d+GHz", "amd x @ 3.50GHz"),
        (r"(?:ab){3}", "ababab"),
        (r"[ab]+c", "abac"),
        (r"a{2,5}b", "aab"),
        (r"[]a]+\]", "]a]"),
        (r"\(\d+\)\?", "(12)?"),
    ],
)
def test_what_people_write_is_taken(pattern: str, text: str) -> None:
    check_pattern(pattern)
    assert found(pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$",
        r"(a*)*b",
        r"(a|a)*b",
        r"(a|ab)+c",
        r"((a?)b)*",
        r"(?:a{1,20}){1,20}b",
        r"((x|y)z)+",
        r".*.*.*.*x",
        r"(a)\1+",
        r"(?=a+)a",
        r"(?!x)y",
        r"(?i)x",
        r"a{1000}",
        "a" * 129,
        r"(unclosed",
    ],
)
def test_what_could_take_for_ever_is_refused_in_words(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"regular expression|which can take|counts to at most"):
        parse_rule(f"zone =~ /{pattern}/")


def test_a_rule_with_a_hint_says_what_to_do_instead() -> None:
    with pytest.raises(ValueError, match=r"a repeat within a repeat.*with `any:`"):
        parse_rule("zone =~ /(a+)+$/")


def test_only_so_much_of_a_fact_is_looked_at() -> None:
    assert not found("b", "a" * TEXT_MOST + "b")


PARTS = st.sampled_from(
    [
        "a",
        "b",
        ".",
        r"\w",
        "[ab]",
        "(",
        "(?:",
        ")",
        "|",
        "*",
        "+",
        "?",
        "{2}",
        "{1,3}",
        "{2,}",
        "*?",
        "^",
        "$",
        r"\d",
        "c",
    ]
)


@given(st.lists(PARTS, max_size=14).map("".join), st.text("ab", max_size=400))
def test_whatever_is_taken_ends_soon_and_answers_as_python_does(pattern: str, text: str) -> None:
    try:
        check_pattern(pattern)
    except ValueError:
        return
    assert found(pattern, text) == (re.search(pattern, text[:TEXT_MOST]) is not None)
