"""Words for people: help for who mistyped, numbers of things."""

from collections.abc import Iterable
from difflib import get_close_matches


def mistyped(word: str, known: Iterable[str]) -> str:
    """`did you mean …?`, if there is a near one."""
    close = get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean …?`, or else the list of what there is."""
    choices = sorted(known)
    if near := mistyped(word, choices):
        return near
    shown = ", ".join(choices[:12]) + (" …" if len(choices) > 12 else "")
    return f"there is: {shown}" if choices else "there is none"


def counted(number: int, one: str, many: str = "") -> str:
    """`1 seed`, `20 seeds`."""
    return f"{number} {one if number == 1 else many or one + 's'}"
