"""The language of rules on nodes and labels: `zone in [a, b]`, `kernel.version version >= 5.4`."""

import operator
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from msgspec import Struct

from mandor.model import pattern

_FACT = r"(?P<fact>[A-Za-z0-9][A-Za-z0-9./_-]*)"
_FORMS = (
    re.compile(_FACT + r"\s+(?P<op>not\s+exists|exists)"),
    re.compile(_FACT + r"\s+(?P<op>not\s+in|in)\s*\[(?P<list>[^\]]*)\]"),
    re.compile(_FACT + r"\s+version\s*(?P<op>==|!=|<=|>=|<|>)\s*(?P<version>[0-9][\w.+~-]*)"),
    re.compile(_FACT + r"\s+integer\s*(?P<op>==|!=|<=|>=|<|>)\s*(?P<integer>[+-]?\d{1,19})", re.ASCII),
    re.compile(_FACT + r"\s*(?P<op>=~)\s*/(?P<regex>.*)/"),
    re.compile(_FACT + r"\s*(?P<op>==|!=|<=|>=|<|>)\s*(?P<value>[^\s\[\]=].*)"),
)

_INTEGER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
LABEL_OPS = frozenset({"==", "!=", "in", "not in", "exists", "not exists"})
"""Operators of rules on labels."""

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Rule(Struct, frozen=True, gc=False):
    """A parsed node rule. `test` evaluates it for the value of the fact, or for None if the node does not have the
    fact.
    """

    fact: str
    op: str
    values: tuple[str, ...] = ()

    def test(self, value: str | None) -> bool:
        if self.op == "exists":
            return value is not None
        if self.op == "not exists":
            return value is None
        if self.op in {"!=", "not in"}:
            return value is None or value not in self.values
        if value is None:
            return False
        if self.op in {"==", "in"}:
            return value in self.values
        if self.op == "=~":
            return pattern.found(self.values[0], value)
        if self.op.startswith("version"):
            return _compare(self.op.removeprefix("version "), _version(value), _version(self.values[0]))
        if self.op.startswith("integer"):
            whole = _integer(value)
            return whole is not None and _compare(self.op.removeprefix("integer "), whole, int(self.values[0]))
        left, right = _number(value), _number(self.values[0])
        return left is not None and right is not None and _compare(self.op, left, right)

    def __str__(self) -> str:
        values = ", ".join(self.values)
        if self.op in {"in", "not in"}:
            return f"{self.fact} {self.op} [{values}]"
        return f"{self.fact} {self.op} {values}".rstrip()


@lru_cache(maxsize=4096)
def parse_rule(text: str) -> Rule:
    """Parse a rule; raises `ValueError` with a description of the error."""
    bare = text.strip()
    if len(bare) > 512:
        raise ValueError(f"a rule must have at most 512 characters; this one has {len(bare)}")
    for form in _FORMS:
        match = form.fullmatch(bare)
        if match:
            return _rule(match)
    raise ValueError(
        f"{bare!r} is not a rule; write `FACT == VALUE`, `FACT in [A, B]`, `FACT exists`, `FACT >= NUMBER`"
    )


@lru_cache(maxsize=4096)
def parse_label_rule(text: str) -> Rule:
    """Parse a rule on labels; raises `ValueError` with a description of the error."""
    rule = parse_rule(text)
    if rule.op not in LABEL_OPS:
        raise ValueError(f"{text.strip()!r}: labels are compared with {', '.join(sorted(LABEL_OPS))} only")
    return rule


def _rule(match: re.Match[str]) -> Rule:
    found = match.groupdict()
    op = " ".join(found["op"].split())
    if found.get("list") is not None:
        values = tuple(_unquote(word) for word in found["list"].split(",") if word.strip())
        if not values:
            raise ValueError(f"`{op} [ ]` needs at least one value")
        return Rule(found["fact"], op, values)
    if found.get("version") is not None:
        return Rule(found["fact"], f"version {op}", (found["version"],))
    if found.get("integer") is not None:
        return Rule(found["fact"], f"integer {op}", (found["integer"],))
    if found.get("regex") is not None:
        pattern.check_pattern(found["regex"])
        return Rule(found["fact"], op, (found["regex"],))
    if found.get("value") is None:
        return Rule(found["fact"], op)
    value = _unquote(found["value"])
    if op in {"<", "<=", ">", ">="} and _number(value) is None:
        raise ValueError(f"`{op}` compares numbers, but {value!r} is not a number; write `version {op}` for versions")
    return Rule(found["fact"], op, (value,))


def _integer(text: str) -> int | None:
    """Return a whole number of 64 bits as Kubernetes reads it; None for other text."""
    found = int(text) if _INTEGER.fullmatch(text) else None
    return found if found is not None and -(2**63) <= found < 2**63 else None


def _number(text: str) -> int | float | None:
    """Return a number, exactly if it is a whole one; None for other text."""
    whole = _integer(text)
    if whole is not None:
        return whole
    return float(text) if _NUMBER.fullmatch(text) else None


def _unquote(word: str) -> str:
    bare = word.strip()
    return bare[1:-1] if len(bare) >= 2 and bare[0] == bare[-1] and bare[0] in "\"'" else bare


def _version(text: str) -> tuple[tuple[int, int | str], ...]:
    parts = re.findall(r"\d+|[A-Za-z]+", text)
    return tuple((1, int(part)) if part.isdigit() else (0, part) for part in parts)


def _compare(op: str, left: Any, right: Any) -> bool:
    return bool(_OPERATORS[op](left, right))
