"""The subset of Go templates that scheduler_perf uses: values, five arithmetic functions, `if`."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from mandor.errors import Invalid

Values = Mapping[str, object]

_ACTION = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.DOTALL)
_WORD = re.compile(r'\s*("[^"]*"|[()]|[^\s()]+)')
_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "AddInt": lambda left, right: left + right,
    "SubtractInt": lambda left, right: left - right,
    "MultiplyInt": lambda left, right: left * right,
    "DivideInt": lambda left, right: left // right,
    "Mod": lambda left, right: left % right,
}


def has_actions(text: str) -> bool:
    return "{{" in text


def render(text: str, values: Values, *, file: str = "") -> str:
    """Return the rendered text; an unknown action is an error with its line."""
    out: list[str] = []
    shown = [True]
    """For each enclosing `if`, whether its branch is active."""
    begun: list[int] = []
    for plain, action, line in _parts(text):
        if all(shown):
            out.append(plain)
        word, _, rest = action.partition(" ")
        try:
            if word == "if":
                shown.append(all(shown) and _truth(_value(rest, values)))
                begun.append(line)
            elif action in {"else", "end"}:
                if len(shown) == 1:
                    raise ValueError(f"`{action}` without an `if`")
                if action == "else":
                    shown[-1] = all(shown[:-1]) and not shown[-1]
                else:
                    shown.pop()
                    begun.pop()
            elif action and all(shown):
                out.append(str(_value(action, values)))
        except (ValueError, ZeroDivisionError) as error:
            raise Invalid(f"`{{{{{action}}}}}`: {error}", file=file, line=line) from None
    if begun:
        raise Invalid("an `if` has no `end`", file=file, line=begun[-1])
    return "".join(out)


def _parts(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield plain text and the action after it, with its line; the last action is empty."""
    at, line = 0, 1
    for match in _ACTION.finditer(text):
        plain = text[at : match.start()]
        line += plain.count("\n")
        yield plain, match[1], line
        at = match.end()
        line += match[0].count("\n")
    yield text[at:], "", line


def _truth(value: object) -> bool:
    return value not in (0, "", False, None)


def _value(expression: str, values: Values) -> object:
    words = _WORD.findall(expression)
    value, rest = _read(words, values)
    if rest:
        raise ValueError(f"{' '.join(rest)!r} is too much")
    return value


def _read(words: Sequence[str], values: Values) -> tuple[object, Sequence[str]]:
    if not words:
        raise ValueError("something is missing")
    word, rest = words[0], words[1:]
    if word == "(":
        value, rest = _read(rest, values)
        if not rest or rest[0] != ")":
            raise ValueError("a `)` is missing")
        return value, rest[1:]
    if word in _FUNCTIONS or word == "eq":
        left, rest = _read(rest, values)
        right, rest = _read(rest, values)
        if word == "eq":
            return left == right, rest
        return _FUNCTIONS[word](_number(left), _number(right)), rest
    if word.startswith("."):
        return values.get(word[1:], ""), rest
    if word.startswith('"'):
        return word[1:-1], rest
    if re.fullmatch(r"-?\d+", word):
        return int(word), rest
    raise ValueError(f"there is no function {word}; known are {', '.join(_FUNCTIONS)} and eq")


def _number(value: object) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        return int(value)
    raise ValueError(f"{value!r} is not a whole number")
