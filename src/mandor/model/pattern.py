"""Regular expressions in rules: only such as cannot keep the scheduler busy.

Python's engine goes back and tries again; repeats within repeats, or alternatives within them, make it try
exponentially often, and a row of open repeats polynomially. So these are refused, and long texts are cut.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

PATTERN_MOST = 128
TEXT_MOST = 128
"""So much of a fact is looked at; with `OPEN_MOST` it keeps the worst case below a second."""
OPEN_MOST = 3
COUNT_MOST = 100
_REPEAT = re.compile(r"[*+?]|\{(?P<least>\d*)(?P<comma>,?)(?P<most>\d*)\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_GROUP = re.compile(r"\((?:\?(?:P<\w+>|:))?")


@dataclass(slots=True)
class _Group:
    """What stands in a pair of brackets so far."""

    varies: bool = False
    chooses: bool = False


def check_pattern(text: str) -> None:
    """A `ValueError` says what is wrong with it."""
    if len(text) > PATTERN_MOST:
        raise ValueError(f"a regular expression has at most {PATTERN_MOST} characters; this one has {len(text)}")
    try:
        re.compile(text)
    except (re.error, OverflowError) as error:
        raise ValueError(f"/{text}/ is not a regular expression: {error}") from None
    _Check(text).run()


@lru_cache(maxsize=1024)
def _compiled(text: str) -> re.Pattern[str]:
    return re.compile(text)


def found(pattern: str, text: str) -> bool:
    return _compiled(pattern).search(text[:TEXT_MOST]) is not None


class _Check:
    """Walks over a text that is known to be a regular expression."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._open = text, 0, 0
        self._groups = [_Group()]

    def run(self) -> None:
        while self._at < len(self._text):
            atom = self._atom()
            if atom is not None:
                self._repeated(atom)

    def _atom(self) -> _Group | None:
        """One thing that can be repeated; None: something else."""
        text, at = self._text, self._at
        letter = text[at]
        if letter == "(":
            group = _GROUP.match(text, at)
            assert group is not None
            if text.startswith("(?", at) and group.end() == at + 1:
                raise self._refused("`(?…` other than `(?:…` and `(?P<name>…`")
            self._groups.append(_Group())
            self._at = group.end()
            return None
        if letter == ")":
            self._at += 1
            return self._closed()
        if letter == "|":
            self._groups[-1].chooses = True
            self._at += 1
            return None
        if letter == "[":
            chosen = _CLASS.match(text, at)
            self._at = chosen.end() if chosen is not None else at + 1
        elif letter == "\\":
            if text[at + 1 : at + 2].isdigit() and text[at + 1] != "0":
                raise self._refused("a reference to a group (`\\1`)")
            self._at += 2
        else:
            self._at += 1
        return _Group()

    def _closed(self) -> _Group:
        group = self._groups.pop()
        outer = self._groups[-1]
        outer.varies |= group.varies
        outer.chooses |= group.chooses
        return group

    def _repeated(self, atom: _Group) -> None:
        repeat = _REPEAT.match(self._text, self._at)
        if repeat is None or repeat[0] in {"{}", "{,}"}:
            return
        self._at = repeat.end()
        if self._text[self._at : self._at + 1] in {"?", "+"}:
            self._at += 1
        least, most = _bounds(repeat)
        if most is not None and most > COUNT_MOST:
            raise ValueError(f"/{self._text}/: a repeat counts to at most {COUNT_MOST}")
        if most is None or most > 1:
            if atom.varies:
                raise self._refused("a repeat within a repeat")
            if atom.chooses:
                raise self._refused("alternatives (`|`) within a repeat")
        if least != most:
            self._groups[-1].varies = True
        if most is None or most - least > 1:
            self._open += 1
            if self._open > OPEN_MOST:
                raise self._refused(f"more than {OPEN_MOST} repeats of no fixed length")

    def _refused(self, what: str) -> ValueError:
        return ValueError(
            f"/{self._text}/ has {what}, which can take for ever; write it more simply, or several rules with `any:`"
        )


def _bounds(repeat: re.Match[str]) -> tuple[int, int | None]:
    simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(repeat[0])
    if simple is not None:
        return simple
    least = int(repeat["least"] or 0)
    if not repeat["comma"]:
        return least, least
    return least, int(repeat["most"]) if repeat["most"] else None
