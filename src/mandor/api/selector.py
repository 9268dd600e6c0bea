"""Label selectors such as `app=web, tier!=db, zone in (a, b), gpu, !spot`; all terms must match."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mandor.errors import Invalid

TERMS_MOST = 32
_KEY = r"[A-Za-z0-9](?:[A-Za-z0-9./_-]*[A-Za-z0-9])?"
_VALUE = r"[^,()\s!=]*"
_EQUAL = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_AMONG = re.compile(rf"({_KEY})\s+(in|notin|not in)\s*\(([^()]*)\)")
_THERE = re.compile(rf"(!?)\s*({_KEY})")
_TERM = re.compile(r"(?:[^,()]|\([^()]*\))+")
_HINT = "write k=v, k!=v, k in (a, b), k notin (a, b), k or !k, joined by commas"

Labels = Mapping[str, str]
Test = Callable[[Labels], bool]


@dataclass(frozen=True, slots=True)
class Selector:
    equal: Mapping[str, str] = field(default_factory=dict)
    """Terms that a store can evaluate itself."""
    tests: tuple[Test, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.equal or self.tests)

    def matches(self, labels: Labels) -> bool:
        return all(labels.get(key) == value for key, value in self.equal.items()) and all(
            test(labels) for test in self.tests
        )


EVERYTHING = Selector()


def parse_selector(text: str) -> Selector:
    if not text.strip():
        return EVERYTHING
    terms = [term.strip() for term in _TERM.findall(text)]
    if len(terms) > TERMS_MOST:
        raise Invalid(f"a selector has at most {TERMS_MOST} terms; this one has {len(terms)}")
    if ",".join(terms).replace(" ", "") != text.replace(" ", ""):
        raise Invalid(f"the selector {text[:100]!r} is invalid", hint=_HINT)
    equal: dict[str, str] = {}
    tests: list[Test] = []
    for term in terms:
        found = _EQUAL.fullmatch(term)
        if found is not None and found[2] != "!=" and equal.get(found[1], found[3]) == found[3]:
            equal[found[1]] = found[3]
        else:
            tests.append(_test(term))
    return Selector(equal, tuple(tests))


def _test(term: str) -> Test:
    found = _EQUAL.fullmatch(term)
    if found is not None:
        key, value, wanted = found[1], found[3], found[2] != "!="
        return lambda labels: (labels.get(key) == value) is wanted
    found = _AMONG.fullmatch(term)
    if found is not None:
        key, wanted = found[1], found[2] == "in"
        values = frozenset(value.strip() for value in found[3].split(","))
        return lambda labels: (labels.get(key) in values) is wanted
    found = _THERE.fullmatch(term)
    if found is not None:
        key, wanted = found[2], not found[1]
        return lambda labels: (key in labels) is wanted
    raise Invalid(f"the selector has an invalid term: {term[:100]!r}", hint=_HINT)
