"""The reference pages and guides say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from mandor.cli.commands import serve
from mandor.cli.main import COMMANDS, run
from mandor.model.manifest import load_manifests
from mandor.roots.settings import AgentRootSettings, ServerSettings, Settings
from scripts import reference

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "guides" / "manifests.md"


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_reference_page_is_what_the_code_shows(name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert written == reference.PAGES[name](), "run scripts/reference.py"


def test_every_key_of_the_manifest_has_a_meaning() -> None:
    rows = [line.split("|") for line in reference.manifest_page().splitlines() if line.startswith("| `")]
    silent = {row[1].strip().strip("`") for row in rows if not row[-2].strip()}
    assert silent <= {"kind", "name", "key", "value", "effect", "protocol"}, "say what it means below the field"


@pytest.mark.parametrize("name", ["errors.md", "kinds.md", "metrics.md", "reasons.md", "settings.md"])
def test_every_row_of_a_list_has_a_meaning(name: str) -> None:
    rows = [line.split("|") for line in reference.PAGES[name]().splitlines() if line.startswith("| `")]
    assert rows
    assert [row[1].strip() for row in rows if not row[-2].strip()] == []


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL))
def test_every_manifest_of_the_guide_is_a_good_one(text: str) -> None:
    assert load_manifests(text)


def test_the_guides_name_only_commands_and_options_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for page in (ROOT / "docs" / "guides").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for name, rest in re.findall(r"^\|? ?`?mandor (\w+)([^`#\n]*)", text, re.MULTILINE):
            assert name in COMMANDS, f"{page.name}: mandor {name}"
            inner = {"create", "place", "prepare", "release", "rotate"} & set(rest.split()[:1])
            run([name, *inner, "--help"])
            help_text = capsys.readouterr().out
            for option in re.findall(r" (--?[a-z][a-z-]*)", rest.partition(" -- ")[0].replace(" -it ", " -i -t ")):
                assert re.search(rf"{option}\b", help_text), f"{page.name}: mandor {name} {option}"


@pytest.mark.parametrize(
    ("command", "settings"),
    [(serve.server_command, ServerSettings), (serve.agent_command, AgentRootSettings)],
    ids=["server", "agent"],
)
def test_every_setting_is_an_option_and_every_option_a_setting(
    command: click.Command, settings: type[Settings]
) -> None:
    options = {param.name for param in command.params if isinstance(param, click.Option)} - {"config"}
    assert options == set(settings.__struct_fields__)
