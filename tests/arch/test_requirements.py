"""Every requirement that is built has a test that carries its id, and no test carries an id that does not exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts.requirements import ROOT, collect, main, problems, read_checklist, read_later


def test_every_requirement_has_a_test_or_is_listed_as_not_built_yet() -> None:
    assert problems(read_checklist(), read_later(), collect()) == []


def test_a_requirement_without_a_test_is_a_problem_and_so_is_a_list_that_is_out_of_date() -> None:
    checklist = {"S0-1": "Places work", "S0-2": "Runs work", "S0-3": "Stops work"}
    assert problems(checklist, {"S0-2", "S0-3", "S0-4"}, {"S0-3": ["t.py::test_a"], "S0-9": ["t.py::test_b"]}) == [
        "S0-1: no test carries it: Places work",
        "S0-3: has a test; remove it from `later`",
        "S0-4: no such requirement; remove it from `later`",
        "S0-9: no such requirement; t.py::test_b carries it",
    ]


def test_no_module_marks_all_its_tests_at_once() -> None:
    marked = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if _marks_all(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert marked == []
    assert _marks_all(ast.parse(SAMPLE))
    assert _marks_all(
        ast.parse("class TestA:\n    pytestmark: list = [\n        mark.slow,\n        mark.req('S0-1'),\n    ]")
    )
    assert not _marks_all(ast.parse("pytestmark = pytest.mark.slow"))


def _marks_all(tree: ast.Module) -> bool:
    """Return whether a `pytestmark` of a module or of a class carries the id of a requirement."""
    marks = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id == "pytestmark"
    ]
    return any("req" in {getattr(each, "attr", "") for each in ast.walk(mark)} for mark in marks)


def test_the_checklist_has_every_point() -> None:
    sections = [identity.split("-")[0] for identity in read_checklist()]
    assert {each: sections.count(each) for each in dict.fromkeys(sections)} == {
        "S0": 35,
        "S1": 40,
        "S2": 50,
        "S3": 49,
        "S4": 47,
    }


SAMPLE = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.req("S0-1")]

@pytest.mark.req("S0-2", "S0-3")
class TestThings:
    @pytest.mark.req("S0-4")
    async def test_inside(self): ...

    def helper(self): ...

@pytest.mark.req("S0-6")
class TestOfASuite(Suite):
    def make(self): ...

@pytest.mark.req("S0-7")
class NoTest(Suite):
    def make(self): ...

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.req("S0-5"))])
def test_outside(x): ...
"""


def test_marks_are_found_on_classes_suites_functions_and_parameters_but_not_on_modules(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    inside, outside = "test_sample.py::TestThings::test_inside", "test_sample.py::test_outside"
    suite = "test_sample.py::TestOfASuite"
    assert collect([tmp_path], tmp_path) == {
        "S0-2": [inside],
        "S0-3": [inside],
        "S0-4": [inside],
        "S0-5": [outside],
        "S0-6": [suite],
    }


def test_check_fails_for_an_id_without_a_test(capsys: pytest.CaptureFixture[str]) -> None:
    found = collect()
    shown = next(identity for identity in read_checklist() if identity in found)
    assert main(["--check", shown]) == 0
    assert main(["--check", f"{shown},S9-1"]) == 1
    assert "S9-1: no such requirement" in capsys.readouterr().out
