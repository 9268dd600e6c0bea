"""Texts for messages: suggestions for mistyped words, and counted nouns."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

WORD_MOST = 64
"""Characters of a word that is compared with others, and of a word that it is compared with."""
KNOWN_MOST = 500
"""Words that one word is compared with: comparing takes about 20 µs each."""


def mistyped(word: str, known: Iterable[str]) -> str:
    """Return `did you mean …?` if one of the first `KNOWN_MOST` words is similar; empty otherwise, and for a very
    long word.
    """
    if len(word) > WORD_MOST:
        return ""
    near = (each for each in sorted(known) if len(each) <= WORD_MOST)
    close = get_close_matches(word, list(islice(near, KNOWN_MOST)), n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `did you mean …?`, or else the list of valid words."""
    choices = sorted(known)
    if near := mistyped(word, choices):
        return near
    shown = ", ".join(each[:WORD_MOST] for each in choices[:12]) + (" …" if len(choices) > 12 else "")
    return f"there is: {shown}" if choices else "there is none"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 seed`, `20 seeds`."""
    return f"{number} {one if number == 1 else many or one + 's'}"
