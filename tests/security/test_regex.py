"""Regular expressions of users: none of them reaches an engine that backtracks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mandor.importers.base import Options, Source
from mandor.importers.nomad import NomadImporter
from mandor.lib import regex
from mandor.model.rule import parse_rule

SOURCE = Path(regex.__file__).parents[1]
LONG = "a" * 100_000 + "!"
BACKTRACKING = ("(a+)+$", "(a*)*b", "(a|a)*b", "(a|aa)+$", "([a-z]+)*1", "(.*)*x", ".*.*.*.*.*=", "(a?){50}a{50}b")
MATCHING = {"compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"}


@pytest.mark.parametrize("pattern", BACKTRACKING)
def test_a_pattern_that_would_backtrack_for_ever_is_matched_at_once(pattern: str) -> None:
    assert regex.compiled(pattern).search(LONG) is None


@pytest.mark.parametrize("pattern", BACKTRACKING)
def test_a_rule_with_such_a_pattern_is_tested_at_once(pattern: str) -> None:
    assert not parse_rule(f"zone =~ /^{pattern}/").test("a" * 255 + "!")


@pytest.mark.parametrize("pattern", BACKTRACKING)
def test_a_job_file_with_such_a_pattern_is_read(pattern: str) -> None:
    text = f"""
    job "a" {{
      group "a" {{
        task "a" {{
          driver = "docker"
          config {{ image = "nginx" }}
          env {{
            A = length(regexall("^(?:{pattern})", "{LONG}"))
            B = replace("x{LONG}", "/^x(?:{pattern})/", "y")
            C = regex_replace("x{LONG}", "^x(?:{pattern})", "y") == "x{LONG}"
          }}
        }}
      }}
    }}"""
    (made,) = NomadImporter().read([Source("a.nomad", text)], Options()).made
    env = made.manifest["groups"]["a"]["tasks"]["a"]["env"]
    assert (str(env["A"]), env["B"], str(env["C"]).lower()) == ("0", f"x{LONG}", "true")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(a)\1", "refers to a group"),
        (r"(?=a)b", "looks around"),
        (r"(?!a)b", "looks around"),
        (r"(?<=a)b", "looks around"),
        (r"(?<!a)b", "looks around"),
        (r"(?P<x>a)(?P=x)", "not supported"),
        (r"(?>a)b", "not supported"),
        (r"a{5000}", "repetition size"),
        (r"(((a{30}){30}){30}){30}", "repetition size"),
        (r"[", "missing"),
    ],
)
def test_a_pattern_that_cannot_be_matched_in_linear_time_is_refused_in_words(pattern: str, why: str) -> None:
    with pytest.raises(regex.Unfit, match=why):
        regex.compiled(pattern)


def test_a_large_pattern_is_refused_for_its_memory() -> None:
    with pytest.raises(regex.Unfit):
        regex.compiled("|".join(f"(?:{number}[a-z]{{100}})" for number in range(2000)))


def calls_of_re(path: Path) -> list[tuple[int, ast.expr]]:
    """The patterns that a module gives to Python's own engine."""
    return [
        (node.lineno, node.args[0])
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "re"
        and node.func.attr in MATCHING
        and node.args
    ]


def is_fixed(pattern: ast.expr) -> bool:
    """Whether the code itself says the pattern: a literal, or one with escaped texts and names of constants in it."""
    if isinstance(pattern, ast.Constant):
        return True
    if isinstance(pattern, ast.BinOp):
        return is_fixed(pattern.left) and is_fixed(pattern.right)
    if isinstance(pattern, ast.JoinedStr):
        return all(is_fixed(each) for each in pattern.values)
    if isinstance(pattern, ast.FormattedValue):
        return is_fixed(pattern.value)
    if isinstance(pattern, ast.Call):
        return ast.unparse(pattern.func) == "re.escape"
    return isinstance(pattern, ast.Name) and (pattern.id.isupper() or pattern.id == "quote")


LOCAL_ONLY = {"cli/top/rows.py"}
"""A search in the terminal of the person who types the pattern."""


def test_pythons_engine_gets_only_patterns_that_the_code_shows() -> None:
    found = {
        f"{path.relative_to(SOURCE)}:{line}: {ast.unparse(pattern)}"
        for path in SOURCE.rglob("*.py")
        if str(path.relative_to(SOURCE)) not in LOCAL_ONLY
        for line, pattern in calls_of_re(path)
        if not is_fixed(pattern)
    }
    assert found == set()
