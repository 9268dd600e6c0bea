"""The reference pages and guides say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import click
import msgspec
import pytest

from mandor.cli.commands import serve
from mandor.cli.main import COMMANDS, run
from mandor.model.codec import from_plain
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
        for name, rest in re.findall(r"^\|? ?`?mandor (\w[\w-]*)([^`#\n]*)", text, re.MULTILINE):
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


NOT_LITERAL = {"names", "roles"}
"""Options whose help describes the default in words."""


@pytest.mark.parametrize(
    ("command", "settings"),
    [(serve.server_command, ServerSettings), (serve.agent_command, AgentRootSettings)],
    ids=["server", "agent"],
)
def test_the_help_of_an_option_shows_the_default_of_its_setting(
    command: click.Command, settings: type[Settings]
) -> None:
    shown = {
        str(param.name): found[1]
        for param in command.params
        if isinstance(param, click.Option) and (found := re.search(r"\[default: (.*)\]", param.help or ""))
    }
    compared = 0
    for field in msgspec.structs.fields(settings):
        if field.name in shown.keys() - NOT_LITERAL and field.default not in ("", (), None):
            text: object = shown[field.name].removeprefix("./")
            given = [text] if isinstance(field.default, tuple) else int(str(text)) if field.type is int else text
            assert getattr(from_plain({field.name: given}, settings), field.name) == field.default, field.name
            compared += 1
    assert compared > 3


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (
            ["--server", "http://a:1,http://b:1", "--server", "http://c:1"],
            {"server": ("http://a:1", "http://b:1", "http://c:1")},
        ),
        (["--engine", "docker, podman"], {"engine": ("docker", "podman")}),
        (["--label", "a=b,c", "--label", "d=e"], {"label": ("a=b,c", "d=e")}),
        (["--allow-host-path", "/a,b"], {"allow_host_path": ("/a,b",)}),
    ],
)
def test_repeated_options_become_lists_and_only_lists_of_simple_words_split_at_commas(
    words: list[str], wanted: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[AgentRootSettings] = []
    monkeypatch.setattr("mandor.roots.agent.run", started.append)
    serve.agent_command.main(words, standalone_mode=False)
    assert {name: getattr(started[0], name) for name in wanted} == wanted


def test_the_server_option_before_the_command_is_the_default_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[AgentRootSettings] = []
    monkeypatch.setattr("mandor.roots.agent.run", started.append)
    serve.agent_command.main([], standalone_mode=False, obj={"server": "http://a:1,http://b:1"})
    assert started[0].server == ("http://a:1", "http://b:1")
