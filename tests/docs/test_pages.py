"""The documents as a whole: links that lead somewhere, and two languages that say the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.text import ROOT, blocks


def pages() -> list[Path]:
    folders = ("docs", "deploy", "examples", "bench")
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in (ROOT / folder).rglob("*.md"))])


def prose(path: Path) -> str:
    return re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", prose(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in anchors(linked), f"{target} has no such heading"


def typed(page: str) -> list[str]:
    return [re.sub(r"\s+#.*", "", block.text) for block in blocks(ROOT / page) if block.language == "sh"]


def test_both_readmes_report_people_to_type_the_same() -> None:
    assert typed("README.md") == typed("README.id.md")
    assert typed("README.md")[0].splitlines() == ["make dev", "make test"]


@pytest.mark.req("S0-33")
@pytest.mark.parametrize("page", ["docs/concepts/control-plane-data-plane.md", "docs/id/control-plane-data-plane.md"])
def test_the_two_planes_are_explained_by_the_party_with_a_diagram(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert all(word in text.lower() for word in ("pusat", "kader", "control plane", "data plane", "heartbeat"))
    assert any("┌" in block.text for block in blocks(ROOT / page))


def test_every_decision_is_listed() -> None:
    index = (ROOT / "docs/adr/README.md").read_text(encoding="utf-8")
    records = sorted(path.name for path in (ROOT / "docs/adr").glob("[0-9]*.md"))
    assert [name for name in records if f"]({name})" not in index] == []
    numbers = [name.split("-")[0] for name in records]
    assert len(numbers) == len(set(numbers)), "a number is used twice"


@pytest.mark.parametrize("record", sorted((ROOT / "docs/adr").glob("[0-9]*.md")), ids=lambda path: path.name)
def test_a_decision_has_its_three_sections(record: Path) -> None:
    headings = re.findall(r"^## (.+)$", prose(record), flags=re.MULTILINE)
    assert headings[:3] == ["Context", "Decision", "Consequences"]


FLOW = ROOT / "docs" / "contributing" / "flow.md"
STEPS = re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", FLOW.read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize(("file", "name"), STEPS, ids=[f"{file}:{name}" for file, name in STEPS])
def test_the_flow_of_an_instance_names_code_that_exists(file: str, name: str) -> None:
    tree = ast.parse((ROOT / "src" / "mandor" / file).read_text(encoding="utf-8"))
    assert name in _defined(tree)


def test_every_file_on_the_page_of_the_flow_exists() -> None:
    files = re.findall(r"`([\w/]+\.py)`", FLOW.read_text(encoding="utf-8"))
    assert len(files) > len(STEPS) > 20
    assert [file for file in files if not (ROOT / "src" / "mandor" / file).is_file()] == []


def _defined(tree: ast.Module) -> set[str]:
    found = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)}
    assigned = (target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets)
    return found | {target.id for target in assigned if isinstance(target, ast.Name)}


PACKAGES = sorted(path.name for path in (ROOT / "src" / "mandor").iterdir() if (path / "__init__.py").is_file())


@pytest.mark.parametrize("package", PACKAGES)
def test_the_page_of_the_tree_shows_every_package(package: str) -> None:
    assert re.search(
        rf"^[├└]── {package}/ ", (ROOT / "docs/contributing/tree.md").read_text(encoding="utf-8"), re.MULTILINE
    )
