"""The rules of tests: no fixed sleeps of seconds, no assertions about elapsed time, no silent early ends."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from scripts.requirements import ROOT

SLEEP_SECONDS_MOST = 1.0
"""A fixed sleep must be shorter: a pause between two looks at a fact."""
CLOCKS = {"monotonic", "perf_counter", "process_time", "monotonic_ns", "perf_counter_ns", "thread_time"}
Found = Iterator[tuple[int, str]]


def _files() -> list[Path]:
    return sorted((ROOT / "tests").rglob("*.py"))


def _all(rule: str) -> list[str]:
    found = []
    for path in _files():
        text = path.read_text(encoding="utf-8")
        found += [f"{path.relative_to(ROOT)}:{line}: {what}" for line, what in RULES[rule](ast.parse(text), text)]
    return found


# Sleeps.


def long_sleeps(tree: ast.Module, text: str) -> Found:
    """Yield sleeps of the real clock whose length is a number that is too high."""
    if "run_virtual" in text or "VirtualClock" in text:
        return  # The event loop of these tests skips all waits.
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and node.args and _name(node.func) == "sleep"):
            continue
        owner = ast.unparse(node.func).rpartition(".")[0]
        length = node.args[0]
        fixed = isinstance(length, ast.Constant) and isinstance(length.value, int | float)
        if (
            fixed
            and owner in {"", "time", "asyncio", "anyio"}
            and float(ast.literal_eval(length)) >= SLEEP_SECONDS_MOST
        ):
            yield node.lineno, f"{ast.unparse(node)}: wait for a fact, or for `asyncio.Event().wait()` if nothing comes"


# Elapsed time.


def timed_assertions(tree: ast.Module, text: str) -> Found:
    """Yield assertions that compare a time that passed on the real clock."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        elapsed = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and _is_elapsed(node.value, set())
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Assert):
                compared = [each for each in ast.walk(node.test) if isinstance(each, ast.Compare)]
                sides = [side for each in compared for side in (each.left, *each.comparators)]
                if any(_is_elapsed(side, elapsed) for side in sides):
                    yield node.lineno, f"{ast.unparse(node.test)}: times belong to bench/"


def _is_elapsed(node: ast.expr, known: set[str]) -> bool:
    """Return whether this is `time.monotonic() - began`, or a variable that holds such a difference."""
    if isinstance(node, ast.Name):
        return node.id in known
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)):
        return False
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    return any(_name(each.func) in CLOCKS and ast.unparse(each.func).startswith("time.") for each in calls)


# Early ends.


def early_returns(tree: ast.Module, text: str) -> Found:
    """Yield ends of a test that neither follow an assertion, nor are the expected error or the fact waited for."""
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    for each in functions:
        if each.name.startswith("test") and not _always_fails(each.body[-1]):
            yield from _returns(each.body)


def _returns(body: Sequence[ast.stmt]) -> Found:
    for number, statement in enumerate(body):
        if isinstance(statement, ast.Return):
            if number == 0 or not isinstance(body[number - 1], ast.Assert):
                yield statement.lineno, "return: use pytest.skip with a reason, hypothesis.assume, or an assertion"
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for _, value in ast.iter_fields(statement):
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    yield from _returns(value)  # Handlers of exceptions are left out: the error is the result.


def _always_fails(statement: ast.stmt) -> bool:
    """Return whether the end of a test is a failure, so that a return is its success."""
    return isinstance(statement, ast.Raise) or (
        isinstance(statement, ast.Expr) and ast.unparse(statement).startswith("pytest.fail(")
    )


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


RULES = {"sleeps": long_sleeps, "times": timed_assertions, "returns": early_returns}


@pytest.mark.parametrize("rule", RULES)
def test_no_test_breaks_the_rule(rule: str) -> None:
    assert _all(rule) == []


BROKEN = """
import asyncio, time, pytest

def test_a():
    time.sleep(2)
    clock.sleep(10)
    time.sleep(0.1)
    began = time.monotonic()
    took = time.monotonic() - began
    assert took < 5
    assert time.perf_counter() - began < 1
    while True:
        assert time.monotonic() < deadline

async def test_b(x):
    await asyncio.sleep(1.0)
    if x:
        return
    try:
        x()
    except ValueError:
        return
    if x is None:
        assert x
        return
    def inner():
        return

def test_c():
    for _ in range(3):
        if look():
            return
    pytest.fail("never")
"""


def test_every_rule_finds_what_breaks_it() -> None:
    tree = ast.parse(BROKEN)
    found = {name: [line for line, _ in rule(tree, BROKEN)] for name, rule in RULES.items()}
    assert found == {"sleeps": [5, 16], "times": [10, 11], "returns": [18]}
    assert list(long_sleeps(tree, BROKEN + "run_virtual")) == []


# Engine suites.


def test_every_engine_suite_pins_the_capabilities_of_its_engine() -> None:
    """The suite skips what an engine does not announce, so that a lost announcement would not fail it."""
    suites = [*(ROOT / "tests" / "conformance").glob("test_engine_*.py"), *(ROOT / "examples").rglob("test_*.py")]
    unpinned, pinned = [], 0
    for path in suites:
        classes = {each.name: each for each in ast.parse(path.read_text()).body if isinstance(each, ast.ClassDef)}
        for name, each in classes.items():
            if name.startswith("Test") and "EngineSuite" in _ancestors(each, classes):
                stated = {target for kind in _family(each, classes) for target in _assigned(kind)}
                unpinned += [] if {"limits", "extras"} <= stated else [f"{path.relative_to(ROOT)}::{name}"]
                pinned += 1
    assert unpinned == []
    assert pinned >= 10


def _family(kind: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    yield kind
    for base in kind.bases:
        if (found := classes.get(_name(base))) is not None:
            yield from _family(found, classes)


def _ancestors(kind: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    return {_name(base) for each in _family(kind, classes) for base in each.bases}


def _assigned(kind: ast.ClassDef) -> Iterator[str]:
    for statement in kind.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))
