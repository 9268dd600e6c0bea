"""The files under deploy/ name settings and options that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mandor.roots.settings import AgentRootSettings, ServerSettings, load
from tests.docs.text import ROOT, blocks

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
SETTINGS = [block.text for block in blocks(ROOT / "deploy" / "README.md") if block.language == "toml"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_that_exists(unit: Path) -> None:
    (line,) = re.findall(r"^ExecStart=(.+)$", unit.read_text(), flags=re.MULTILINE)
    _, command, *words = shlex.split(line)
    help_text = subprocess.run(
        [Path(sys.executable).with_name("mandor"), command, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    options = [word for word in words if word.startswith("--")]
    assert options
    assert [option for option in options if option not in help_text] == []


def test_restarting_the_agent_ends_only_the_agent() -> None:
    assert "KillMode=process" in (ROOT / "deploy" / "systemd" / "mandor-agent.service").read_text()


@pytest.mark.parametrize("text", SETTINGS, ids=lambda text: text.splitlines()[0].strip("[]"))
def test_the_settings_are_understood(text: str, tmp_path: Path) -> None:
    (section,) = tomllib.loads(text)
    file = tmp_path / "mandor.toml"
    file.write_text(text)
    kind: type[ServerSettings | AgentRootSettings] = ServerSettings if section == "server" else AgentRootSettings
    settings = load(kind, section, file=str(file), environ={}, flags={})
    assert settings != kind()
