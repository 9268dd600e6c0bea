"""Variables in Compose files: `$NAME`, `${NAME:-default}` and similar forms, and files of variables (.env)."""

import re
from collections.abc import Callable, Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LINE = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)\s*(?:[=:]\s*(?P<value>.*))?", re.DOTALL)
_OPERATORS = (":-", ":?", ":+", "-", "?", "+")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "$": "$"}
DEPTH_MOST = 16

Unset = Callable[[str], None]
UnsetAt = Callable[[str, int], None]
"""Called with the name and the line of a variable that is not set."""


def interpolated(text: str, variables: Mapping[str, str], unset: Unset, depth: int = 0) -> str:
    """Return the text with its variables filled in; raise `ValueError` for invalid syntax; call `unset` for empty
    variables."""
    if "$" not in text:
        return text
    if depth > DEPTH_MOST:
        raise ValueError("defaults of variables are nested too deeply")
    made, at = [], 0
    while (dollar := text.find("$", at)) >= 0:
        made.append(text[at:dollar])
        value, at = _variable(text, dollar, variables, unset, depth)
        made.append(value)
    return "".join(made) + text[at:]


def _variable(text: str, at: int, variables: Mapping[str, str], unset: Unset, depth: int) -> tuple[str, int]:
    """Return the value for the `$` at this position, and the position after it."""
    after = text[at + 1 : at + 2]
    if after == "$":
        return "$", at + 2
    if after == "{":
        end = _closing(text, at + 2)
        return _braced(text[at + 2 : end], variables, unset, depth), end + 1
    name = _NAME.match(text, at + 1)
    if name is None:
        return "$", at + 1
    return _value(name[0], variables, unset), name.end()


def _closing(text: str, at: int) -> int:
    depth = 1
    for index in range(at, len(text)):
        if text[index] == "{" and text[index - 1] == "$":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return index
    raise ValueError(f"`${{{text[at : at + 20]}` has no closing brace; write `$$` for a dollar sign")


def _braced(inner: str, variables: Mapping[str, str], unset: Unset, depth: int) -> str:
    name = _NAME.match(inner)
    if name is None:
        raise ValueError(f"`${{{inner[:20]}}}` names no variable; write `$$` for a dollar sign")
    rest = inner[name.end() :]
    if not rest:
        return _value(name[0], variables, unset)
    operator = next((each for each in _OPERATORS if rest.startswith(each)), None)
    if operator is None:
        raise ValueError(f"`${{{inner[:40]}}}` is not a variable: after its name stands `{rest[:10]}`")
    value = variables.get(name[0])
    there = value is not None and (value != "" or not operator.startswith(":"))
    word = rest[len(operator) :]
    kind = operator[-1]
    if kind == "+":
        return interpolated(word, variables, unset, depth + 1) if there else ""
    if there:
        return value or ""
    if kind == "?":
        said = interpolated(word, variables, unset, depth + 1)
        raise ValueError(f"the variable {name[0]} is required{f': {said}' if said else ''}")
    return interpolated(word, variables, unset, depth + 1)


def _value(name: str, variables: Mapping[str, str], unset: Unset) -> str:
    if name not in variables:
        unset(name)
    return variables.get(name, "")


def read_variables(
    text: str, around: Mapping[str, str], unset: UnsetAt = lambda name, line: None
) -> dict[str, str | None]:
    """Return the variables of a .env file; None: a name without a value, which is taken from the environment."""
    found: dict[str, str | None] = {}
    lines = enumerate(text.removeprefix("\ufeff").splitlines(), start=1)
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"{line[:40]!r} is not `NAME=value`")
        value = match["value"]
        if value is None:
            found[match["name"]] = None
            continue
        quote = value[:1]
        if quote in {'"', "'"}:
            while not _closed(value, quote):
                _, following = next(lines, (0, None))
                if following is None:
                    raise ValueError(f"the value of {match['name']} has no closing quote")
                value += "\n" + following
        known = {**{name: each for name, each in found.items() if each is not None}, **around}
        found[match["name"]] = _unquoted(value, known, _note_unset_at(unset, number))
    return found


def _note_unset_at(unset: UnsetAt, line: int) -> Unset:
    return lambda name: unset(name, line)


def read_raw(text: str) -> dict[str, str | None]:
    """Return the variables as `docker run --env-file` reads them: each value is the unchanged rest of its line."""
    found: dict[str, str | None] = {}
    for line in text.removeprefix("\ufeff").splitlines():
        name, equals, value = line.lstrip().partition("=")
        if name.strip() and not name.startswith("#"):
            found[name.strip()] = value if equals else None
    return found


def _closed(value: str, quote: str) -> bool:
    return re.match(rf"{quote}(?:[^{quote}\\]|\\.)*{quote}", value, re.DOTALL) is not None


def _unquoted(value: str, variables: Mapping[str, str], unset: Unset) -> str:
    quote = value[:1]
    if quote not in {'"', "'"}:
        bare = re.split(r"\s+#", value, maxsplit=1)[0].strip()
        return interpolated(bare, variables, unset)
    match = re.match(rf"{quote}((?:[^{quote}\\]|\\.)*){quote}", value, re.DOTALL)
    inner = match[1] if match else value[1:]
    if quote == "'":
        return inner
    unescaped = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), inner, flags=re.DOTALL)
    return interpolated(unescaped, variables, unset)
