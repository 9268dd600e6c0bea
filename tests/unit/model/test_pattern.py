"""Regular expressions in rules: useful ones work, and none is matched by backtracking."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
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
        (r"(a+)+$", "aaaa"),
        (r"((x|y)z)+", "xzyz"),
        (r"(?i)WEB", "a web"),
        (r"^x{,3}y$", "xxy"),
        (r"web\Z", "web"),
        (r"\u0061b", "ab"),
        (r"a++b", "aab"),
    ],
)
def test_what_people_write_is_taken(pattern: str, text: str) -> None:
    check_pattern(pattern)
    assert found(pattern, text)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(a)\1+", "refers to a group"),
        (r"(?P<a>x)(?P=a)", "is not supported"),
        (r"(?=a+)a", "looks around"),
        (r"(?!x)y", "looks around"),
        (r"(?<=x)y", "looks around"),
        (r"(?<!x)y", "looks around"),
        (r"(?>x)y", "is not supported"),
        (r"a{1001}", "repetition size"),
        (r"((a{50}){50}){50}", "repetition size"),
        ("a" * 129, "at most 128 characters"),
        (r"(unclosed", "missing \\)"),
    ],
)
def test_what_cannot_be_matched_in_linear_time_is_refused_in_words(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_rule(f"zone =~ /{pattern}/")


def test_a_rule_with_a_hint_shows_what_to_do_instead() -> None:
    with pytest.raises(ValueError, match=r"looks around.*with `any:`"):
        parse_rule("zone =~ /(?=a)/")


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
        "{,2}",
        "{2,}",
        "*?",
        "^",
        "$",
        r"\d",
        "c",
    ]
)


@given(st.lists(PARTS, max_size=14).map("".join), st.text("ab", max_size=24))
def test_a_pattern_that_python_knows_too_answers_as_python_does(pattern: str, text: str) -> None:
    try:
        check_pattern(pattern)
        python = re.compile(pattern)
    except (ValueError, re.error):
        return
    # A possessive repeat gives nothing back in Python, and matches like a greedy one here.
    assume(not re.search(r"[*+?}]\+", pattern))
    assert found(pattern, text) == (python.search(text) is not None)
