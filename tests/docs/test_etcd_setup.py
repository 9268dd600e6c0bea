"""ETCD_SETUP.md, typed: each section's blocks in one shell, against a real etcd in a folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.components import environment
from tests.components.ports import free_base
from tests.docs.text import ROOT, blocks

PAGE = ROOT / "ETCD_SETUP.md"
BLOCKS = [block for block in blocks(PAGE) if block.language == "sh"]
PREPARE = "Before you start"
SECTIONS = [section for section in dict.fromkeys(block.section for block in BLOCKS) if section != PREPARE]
SECONDS_MOST = 300


def text_of(section: str) -> str:
    return "\n".join(block.text for block in BLOCKS if block.section == section)


@pytest.mark.real("etcd", "curl", "openssl")
@pytest.mark.slow
@pytest.mark.timeout(360)
@pytest.mark.req("S0-7", "S0-8", "S2-23")
@pytest.mark.parametrize("section", SECTIONS)
def test_what_the_page_shows_works(section: str, etcd_binary: Path, tmp_path: Path) -> None:
    port = free_base([0, 1, 5, 6, 10, 11, 20, 21, 30, 31])
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("MANDOR_SERVER", "MANDOR_TOKEN"))}
    tools = environment("curl", "openssl")
    environ |= tools | {
        "PATH": f"{etcd_binary.parent}:{Path(sys.executable).parent}:{tools.get('PATH', os.environ['PATH'])}",
        "ETCD_DIR": str(tmp_path / "etcd"),
        "CLIENT_PORT": str(port),
        "PEER_PORT": str(port + 1),
        "API_PORT": str(port + 5),
    }
    script = f"set -euo pipefail\n{text_of(PREPARE)}\n{text_of(section)}\necho reached the end\n"
    log = tmp_path / "typed.log"
    with log.open("wb") as out:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=ROOT, env=environ, stdout=out, stderr=out, start_new_session=True
        )
        try:
            shell.wait(SECONDS_MOST)
        finally:
            _end_group(shell.pid)
            shell.wait()
    said = log.read_text(errors="replace")
    logs = "\n".join(
        f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in tmp_path.glob("etcd/*.log")
    )
    assert shell.returncode == 0, f"{said[-3000:]}\n{logs}"
    assert said.endswith("reached the end\n")


def test_the_page_has_every_section_it_promises() -> None:
    sections = ["A single node", "Three members", "TLS", "The key of secrets", "Backup and restore", "Troubleshooting"]
    assert sections == SECTIONS


@pytest.mark.req("S0-8")
@pytest.mark.parametrize("readme", ["README.md", "README.id.md"])
def test_the_page_is_linked_from_the_readme(readme: str) -> None:
    assert "](ETCD_SETUP.md)" in (ROOT / readme).read_text(encoding="utf-8")


def _end_group(group: int) -> None:
    """What the section started in the background and a failure left behind; the shell leads its group."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
