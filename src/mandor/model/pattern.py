"""Regular expressions in rules: limited in length and matched in linear time."""

from functools import lru_cache

from mandor.lib.regex import Unfit, compiled

PATTERN_MOST = 128
TEXT_MOST = 256
"""Number of characters of a fact that are matched."""


def check_pattern(text: str) -> None:
    """Raise a `ValueError` that describes what is wrong with the pattern."""
    if len(text) > PATTERN_MOST:
        raise ValueError(f"a regular expression has at most {PATTERN_MOST} characters; this one has {len(text)}")
    try:
        compiled(text)
    except Unfit as error:
        raise ValueError(f"{error}; simplify it, or use several rules with `any:`") from None


def found(pattern: str, text: str) -> bool:
    """Return whether the pattern matches somewhere in the first `TEXT_MOST` characters of the text."""
    return _found(pattern, text[:TEXT_MOST])


@lru_cache(maxsize=8192)
def _found(pattern: str, text: str) -> bool:
    return compiled(pattern).search(text) is not None
