#!/usr/bin/env python3
"""Lists every requirement with the tests that show it, read from the sources without importing them.

`requirements.py` lists all and fails if a requirement has no test, unless the checklist lists it under `later`;
`--missing` lists only requirements without a test; `--check S0-17,S2-3` fails if one of these has none.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKLIST = ROOT / "docs" / "contributing" / "requirements.toml"
PLACES = (ROOT / "tests", ROOT / "src" / "mandor" / "testing")
"""Where tests stand; the second holds the suites that tests inherit."""

LATER = "later"
"""Section of the checklist with the ids of requirements that are not built yet."""

Found = dict[str, list[str]]
NONE: frozenset[str] = frozenset()


def read_checklist(path: Path = CHECKLIST) -> dict[str, str]:
    """Every id with its sentence, in order."""
    sections = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        f"{section}-{number}": sentence
        for section, points in sections.items()
        for number, sentence in points.items()
        if section != LATER and number != "title"
    }


def read_later(path: Path = CHECKLIST) -> frozenset[str]:
    """Return the ids of requirements that are not built yet."""
    return frozenset(tomllib.loads(path.read_text(encoding="utf-8"))[LATER]["ids"])


def problems(checklist: Mapping[str, str], later: Set[str], found: Found) -> list[str]:
    """Return one line per requirement without a test, and per id of `later` that has a test or does not exist."""
    return [
        *(f"{each}: no test carries it: {checklist[each]}" for each in checklist if each not in {*found, *later}),
        *(f"{each}: has a test; remove it from `later`" for each in sorted(later & found.keys())),
        *(f"{each}: no such requirement; remove it from `later`" for each in sorted(later - checklist.keys())),
        *(
            f"{each}: no such requirement; {test} carries it"
            for each in found.keys() - checklist.keys()
            for test in found[each]
        ),
    ]


def collect(places: Sequence[Path] = PLACES, root: Path = ROOT) -> Found:
    """The tests of each id that any test names."""
    found: Found = {}
    for place in places:
        for path in sorted(place.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "mark.req(" not in text:
                continue
            tree = ast.parse(text, filename=str(path))
            for identity, test in _tests(tree.body, str(path.relative_to(root))):
                found.setdefault(identity, []).append(test)
    return found


def _tests(body: Sequence[ast.stmt], place: str, inherited: frozenset[str] = NONE) -> Iterator[tuple[str, str]]:
    """Yield the tests with their ids. A mark in `pytestmark` does not count: the test or its class carries the id."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            marks = inherited | _decorated(node.decorator_list)
            shown = list(_tests(node.body, f"{place}::{node.name}", marks))
            if not shown and node.bases and node.name.startswith("Test"):  # All tests are those of an inherited suite.
                shown = [(identity, f"{place}::{node.name}") for identity in sorted(marks)]
            yield from shown
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            for identity in sorted(inherited | _decorated(node.decorator_list)):
                yield identity, f"{place}::{node.name}"


def _decorated(expressions: Sequence[ast.expr]) -> frozenset[str]:
    """Ids in `pytest.mark.req(…)` among these expressions, also inside `pytest.param(…, marks=…)`."""
    found: set[str] = set()
    for expression in expressions:
        for node in ast.walk(expression):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "req":
                found |= {str(each.value) for each in node.args if isinstance(each, ast.Constant)}
    return frozenset(found)


def report(checklist: Mapping[str, str], found: Found, *, only_missing: bool) -> Iterator[str]:
    """The list for people."""
    for identity, sentence in checklist.items():
        tests = found.get(identity, [])
        if tests and only_missing:
            continue
        yield f"{identity:6} {'ok' if tests else '--'}  {sentence}"
        yield from (f"           {test}" for test in tests)
    shown = sum(1 for identity in checklist if identity in found)
    yield f"\n{shown} of {len(checklist)} requirements have a test; {len(checklist) - shown} have none"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--missing", action="store_true", help="show only requirements without a test")
    parser.add_argument("--check", metavar="IDS", help="comma-separated ids that must have a test")
    options = parser.parse_args(arguments)
    checklist, found = read_checklist(), collect()

    if options.check is None:
        print("\n".join(report(checklist, found, only_missing=options.missing)))
        wrong = problems(checklist, read_later(), found)
        print("\n".join(wrong), file=sys.stderr)
        return 1 if wrong else 0
    asked = options.check.replace(" ", "").split(",")
    unknown = [identity for identity in asked if identity not in checklist]
    lacking = [identity for identity in asked if identity in checklist and identity not in found]
    for identity in unknown:
        print(f"{identity}: no such requirement in {CHECKLIST.relative_to(ROOT)}")
    for identity in lacking:
        print(f"{identity}: no test carries it: {checklist[identity]}")
    return 1 if unknown or lacking else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
