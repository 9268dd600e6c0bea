"""Every requirement of the foundation has a test that carries its id, and no test carries an id that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.requirements import collect, main, read_checklist


def ids(section: str, *points: int | range) -> set[str]:
    return {f"{section}-{n}" for point in points for n in (point if isinstance(point, range) else [point])}


FOUNDATION = ids("S0", 1, 4, 5, range(7, 16), 17, 18, range(20, 25), range(26, 33)) | ids(
    "S2", range(1, 5), range(8, 13), range(16, 27), 44, 45, 49, 50
)


def test_every_requirement_of_the_foundation_has_a_test() -> None:
    checklist = read_checklist()
    lacking = {identity: checklist[identity] for identity in FOUNDATION - collect().keys()}
    assert lacking == {}


def test_no_test_names_a_requirement_that_does_not_exist() -> None:
    checklist = read_checklist()
    assert {identity: tests for identity, tests in collect().items() if identity not in checklist} == {}


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

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.req("S0-5"))])
def test_outside(x): ...
"""


def test_marks_are_found_on_modules_classes_suites_functions_and_parameters(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    inside, outside = "test_sample.py::TestThings::test_inside", "test_sample.py::test_outside"
    suite = "test_sample.py::TestOfASuite"
    assert collect([tmp_path], tmp_path) == {
        "S0-1": [inside, suite, outside],
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
