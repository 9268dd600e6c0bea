"""The guide says what the importers do: each key it claims is one they read, and none is one they drop."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mandor.importers.compose.service import DROPPED as COMPOSE_DROPPED
from mandor.importers.nomad.task import DROPPED as NOMAD_DROPPED

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "guides" / "bring-your-files.md").read_text(encoding="utf-8")
SOURCES = ROOT / "src" / "mandor" / "importers"


def claimed(section: str) -> set[str]:
    """Keys in the first column of a section's table, those left out apart."""
    found: set[str] = set()
    for row in re.findall(
        r"^\| (.+?) \| (.+) \|$", GUIDE.partition(f"\n## {section}\n")[2].partition("\n## ")[0], re.MULTILINE
    ):
        if not row[1].startswith("none"):
            found |= {key for quoted in re.findall(r"`([a-z_.]+)(?:[:`])", row[0]) for key in quoted.split(".")}
    return found


@pytest.mark.parametrize(
    ("section", "folder", "dropped"),
    [("Docker Compose", "compose", set(COMPOSE_DROPPED)), ("Nomad", "nomad", set(NOMAD_DROPPED))],
)
def test_each_key_of_the_guide_is_read(section: str, folder: str, dropped: set[str]) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (SOURCES / folder).glob("*.py"))
    keys = claimed(section)
    assert len(keys) > 20
    assert {key for key in keys if f'"{key}"' not in text} == set()
    assert keys & dropped == set()
