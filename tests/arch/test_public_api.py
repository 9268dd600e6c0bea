"""The public API: guides and examples for other authors import nothing else from mandor, and its names exist."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {"mandor.plugin", "mandor.engine", "mandor.testing", "mandor.errors"}
GUIDES = [ROOT / "docs" / "guides" / name for name in ("write-a-plugin.md", "write-an-engine.md")]
EXAMPLES = [*(ROOT / "examples" / "plugins").rglob("*.py"), *(ROOT / "examples" / "engines").rglob("*.py")]
SPEED = {"cache_key", "filter_at", "filter_cached", "filter_slot", "fit_formula", "needs", "reach", "rules_out"}
SPEED |= {"by_class", "making_room", "offers", "score_at", "score_cached", "score_formula", "score_slot"}


def sources() -> Iterator[tuple[str, str]]:
    for path in EXAMPLES:
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for guide in GUIDES:
        text = guide.read_text(encoding="utf-8")
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL), 1):
            yield f"{guide.name}, block {number}", block


@pytest.mark.parametrize(("where", "text"), [pytest.param(*each, id=each[0]) for each in sources()])
def test_guides_and_examples_import_only_the_public_api(where: str, text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        else:
            continue
        assert [name for name in names if name.split(".")[0] == "mandor" and name not in PUBLIC] == [], where


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_a_guide_names_no_internal_module_in_its_text(guide: Path) -> None:
    named = set(re.findall(r"`(mandor\.[a-z_]+)[.`\w]*`", guide.read_text(encoding="utf-8")))
    assert named - PUBLIC - {"mandor.plugins", "mandor.engines"} == set(), "entry points are no modules"


@pytest.mark.parametrize("name", ["mandor.plugin", "mandor.engine", "mandor.testing"])
def test_every_public_name_exists(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    assert [each for each in module.__all__ if not hasattr(module, each)] == []


@pytest.mark.parametrize(
    "name", ["FilterPlugin", "ScorePlugin", "PostFilterPlugin", "PreFilterPlugin", "PreScorePlugin"]
)
def test_a_public_plugin_class_has_no_hooks_for_speed(name: str) -> None:
    cls = getattr(importlib.import_module("mandor.plugin"), name)
    assert SPEED & set(dir(cls)) == set()


def test_a_filter_needs_one_method() -> None:
    from mandor.plugin import CycleState, FilterPlugin, NodeView, PlacementRequest, decide, make_node, make_request

    class Small(FilterPlugin):
        name = "Small"

        def filter_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> bool:
            return view.name == "n2"

    assert not inspect.isabstract(Small)
    assert decide(Small(), make_request(), [make_node("n1"), make_node("n2")]).node == "n2"
