"""The documentation of engines is complete."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from mandor.engines.base import Engine
from mandor.engines.fake import FakeOptions
from mandor.engines.process.options import ProcessOptions
from mandor.testing.engine_hooks import EngineHooks
from mandor.testing.engine_watch import REASONS

DOCS = Path(__file__).resolve().parents[3] / "docs"
REFERENCE = (DOCS / "reference/engines.md").read_text(encoding="utf-8")
GUIDE = (DOCS / "guides/write-an-engine.md").read_text(encoding="utf-8")


def test_every_option_is_documented_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", REFERENCE[REFERENCE.index("## fake") :], flags=re.MULTILINE)
    assert rows == list(FakeOptions.__struct_fields__)
    assert [name for name in ProcessOptions.__struct_fields__ if f"options.process.{name}" not in REFERENCE] == []


def test_every_reason_is_documented_and_no_other() -> None:
    table = REFERENCE[REFERENCE.index("| reason |") : REFERENCE.index("## process")]
    assert set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == REASONS


def test_the_guide_names_every_verb_and_no_hook_that_does_not_exist() -> None:
    verbs, hooks = GUIDE.split("## The suite")
    named = set(re.findall(r"^\| `(\w+)` \|", verbs, flags=re.MULTILINE))
    public = {name for name in vars(Engine) if not name.startswith("_") and name not in {"name", "options", "close"}}
    assert named == public
    rows = re.findall(r"^\| (`.*?) \| ", hooks, flags=re.MULTILINE)
    assert rows
    for row in rows:
        assert [name for name in re.findall(r"`(\w+)", row) if not hasattr(EngineHooks, name)] == []


def test_the_guides_programs_can_be_read_by_python() -> None:
    programs = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        ast.parse(program)
