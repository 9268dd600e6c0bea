"""Regular expressions from users, matched in linear time by RE2: no pattern can keep a thread busy.

Python's own engine backtracks: `(a+)+$` takes exponential time on a text of some dozen letters, and holds the
interpreter's lock meanwhile. RE2 has no backtracking; it lacks back-references and lookaround, which are refused here
in words. The package is imported by the first pattern that is compiled.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import re2

MEMORY_BYTES_MOST = 1 << 20
"""Memory of one compiled pattern, with the states that matching adds to it."""
_PYTHON = re.compile(r"\\u([0-9a-fA-F]{4})|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|([*+?}])\+|\{,(?=\d*\})", re.DOTALL)
"""Syntax of Python that RE2 writes in another way; escapes and classes are matched so that they are left alone."""
_LOOKAROUND = ("(?=", "(?!", "(?<=", "(?<!")


class Unfit(ValueError):
    """The text is not a regular expression, or one that cannot be matched in linear time."""


@lru_cache(maxsize=256)
def compiled(text: str) -> "re2._Regexp":
    """Compile a pattern; raises `Unfit` with a description of the error."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_BYTES_MOST
    try:
        return re2.compile(_as_re2(text), options)
    except (re2.error, UnicodeEncodeError) as error:
        raise Unfit(f"/{text[:200]}/ is not a regular expression: {_reason(error)}") from None


def replaced(text: str, pattern: str, new: str, *, most: int) -> str:
    """Replace every match in the text, up to `most` characters in all; `$1`, `$name` and `${name}` in `new` refer to
    groups.
    """
    made, end, length = list[str](), 0, len(text)
    for found in matches(text, pattern):
        made.append(text[end : found.start()])
        for part in _filled(new, found):
            length += len(part)
            if length > most:
                raise Unfit(f"a text of more than {most:,} characters")
            made.append(part)
        end = found.end()
    return "".join(made) + text[end:]


def _filled(new: str, found: Any) -> Iterator[str]:
    """The pieces of `new`, with the groups of this match in it."""
    end = 0
    for name in _GROUP.finditer(new):
        yield new[end : name.start()]
        yield group_text(found, name[1] or name[2])
        end = name.end()
    yield new[end:]


def matches(text: str, pattern: str) -> Iterator[Any]:
    """Every match in the text, from left to right, as a match object of Python's `re` is."""
    return iter(compiled(pattern).finditer(text))


_GROUP = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def group_text(found: Any, name: str) -> str:
    try:
        return found.group(int(name) if name.isdecimal() else name) or ""
    except (IndexError, KeyError):
        raise Unfit(f"the regular expression has no group {name!r}") from None


def _as_re2(text: str) -> str:
    r"""The same pattern in RE2's syntax: `\Z`, `\uXXXX`, `{,n}` and possessive repeats are Python's own."""

    def one(found: re.Match[str]) -> str:
        if found[1]:
            return rf"\x{{{found[1]}}}"
        if found[2]:
            return found[2]
        return {r"\Z": r"\z", "{,": "{0,"}.get(found[0], found[0])

    return _PYTHON.sub(one, text)


def _reason(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    what, _, where = text.partition(": ")
    if where.startswith(_LOOKAROUND):
        return f"`{where}…)` looks around, which cannot be matched in linear time"
    if what == "invalid escape sequence" and where[1:2].isdigit():
        return f"`{where}` refers to a group, which cannot be matched in linear time"
    if what == "invalid perl operator" or what.startswith("invalid named capture"):
        return f"`{where}` is not supported"
    return text
