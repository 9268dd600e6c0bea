"""Patterns for engines that backtrack."""

from __future__ import annotations

import pytest

from mandor.lib.backtracking import check_cheap
from mandor.lib.regex import Unfit

EXPENSIVE = (
    *("(a+)+$", "(a*)*b", "(a|a)*b", "(a|aa)+$", "([a-z]+)*1", "(.*)*x", ".*.*.*.*.*=", "(a?){50}a{50}b"),
    *("((ab)*)*", "(?:x(?:a+)y)+", "(a{2,3}){9}", "a*a*a*", "[^b]*c[^b]*c[^b]*c", "(?P<n>a+)+", "(a*?)*"),
)
CHEAP = (
    *("/v[0-9]+/x", "/[^/]+/[^/]+/[^/]+/[^/]+/x", "/(a|b)/c", "(ab){3}"),
    *("/x(?:/y)?", "/.*\\.php", "[+*?]|{}", "(?i)/a"),
)


@pytest.mark.parametrize("pattern", EXPENSIVE)
def test_a_pattern_that_an_engine_backtracks_over_is_refused(pattern: str) -> None:
    with pytest.raises(Unfit):
        check_cheap(pattern)


@pytest.mark.parametrize("pattern", CHEAP)
def test_a_pattern_that_is_cheap_everywhere_is_allowed(pattern: str) -> None:
    check_cheap(pattern)


@pytest.mark.parametrize("pattern", ["a\nb", "a b", "ä", "\\Qa", "\\x41", "(", "a" * 129, "(?=a)", "(a)\\1"])
def test_a_pattern_that_engines_read_in_different_ways_is_refused(pattern: str) -> None:
    with pytest.raises(Unfit):
        check_cheap(pattern)
