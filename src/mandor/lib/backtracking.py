"""Checks that a regular expression stays cheap in an engine that backtracks, such as the one of a proxy.

`mandor.lib.regex` matches patterns in linear time. A proxy matches them with PCRE instead, so a pattern for a proxy
must also have a shape for which backtracking is cheap: no repetition inside of a repetition, no alternatives inside of
a repetition, and few repetitions that can match the same text.
"""

import re

from mandor.lib.regex import Unfit, compiled

LENGTH_MOST = 128
"""Characters of one pattern."""
OPEN_MOST = 2
"""Repetitions of one pattern whose end is not marked by a character that they exclude: `.*`, `[a-z]+`."""
REPEATS_MOST = 12
"""Repetitions of one pattern in all."""
_TOKEN = re.compile(
    r"\\(?P<escape>.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<open>\((?:\?(?:P?<\w+>|[a-z]*:))?)|(?P<flags>\(\?[a-z]+\))"
    r"|(?P<close>\))|(?P<either>\|)|(?P<repeat>[*+?]\??|\{\d*,?\d*\}\??)|(?P<literal>.)",
    re.ASCII,
)
_REFUSED_ESCAPES = frozenset("QECXRKGkgupPNoxc")
"""Escapes that differ between engines."""


class _Group:
    """A group that is being read."""

    def __init__(self) -> None:
        self.repeats = False
        self.alternatives = False


def check_cheap(text: str) -> None:
    """Raise `Unfit` with a description unless the pattern is valid and cheap in an engine that backtracks."""
    if len(text) > LENGTH_MOST:
        raise Unfit(f"a regular expression has at most {LENGTH_MOST} characters; this one has {len(text)}")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise Unfit(f"/{text[:200]}/ has characters other than printable ASCII without spaces")
    compiled(text)
    _check_shape(text)


def _check_shape(text: str) -> None:
    tokens = list(_TOKEN.finditer(text))
    groups, last, number, still_open = [_Group()], _Group(), 0, 0
    for index, token in enumerate(tokens):
        kind = token.lastgroup
        if kind == "escape" and token["escape"] in _REFUSED_ESCAPES:
            raise Unfit(f"/{text}/ has the escape {token[0]}, which not every engine supports")
        if kind == "open":
            groups.append(_Group())
        elif kind == "close" and len(groups) > 1:
            last = groups.pop()
            groups[-1].repeats |= last.repeats
            groups[-1].alternatives |= last.alternatives
        elif kind == "either":
            groups[-1].alternatives = True
        elif kind == "repeat":
            least, most = _count(token[0])
            if most > 1 and (last.repeats or last.alternatives):
                raise Unfit(f"/{text}/ repeats a group that contains a repetition or alternatives: {token[0]}")
            if least != most:
                groups[-1].repeats = True
                number += 1
                still_open += most > 1 and not _ends_clearly(tokens, index)
        if kind != "close":
            last = _Group()
    if still_open > OPEN_MOST or number > REPEATS_MOST:
        raise Unfit(
            f"/{text}/ has {number} repetitions, {still_open} of them without a clear end; at most {REPEATS_MOST} and"
            f" {OPEN_MOST} are allowed"
        )


def _ends_clearly(tokens: list[re.Match[str]], index: int) -> bool:
    """Return whether the repeated set excludes the character that follows, as in `[^/]+/`."""
    if index == 0 or index + 1 >= len(tokens):
        return False
    repeated, after = tokens[index - 1], tokens[index + 1]
    follower = after["literal"] or (after["escape"] if after["escape"] and not after["escape"].isalnum() else None)
    return follower is not None and repeated[0].startswith("[^") and str(follower) in repeated[0]


def _count(text: str) -> tuple[int, int]:
    """Return the least and the largest number of repetitions."""
    many = 1 << 20
    sign = text.rstrip("?") or "?"
    if not sign.startswith("{"):
        return {"*": (0, many), "+": (1, many), "?": (0, 1)}[sign]
    low, comma, high = sign.strip("{}").partition(",")
    least = int(low or 0)
    return least, int(high) if high else many if comma else least
