"""Reads what a document tells people to type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\s*$")
_MARK = re.compile(r"^<!-- run: (?P<mark>[\w-]+) -->$")


@dataclass(frozen=True)
class Block:
    """A fenced block: its section (the last `##` heading), its mark (`<!-- run: MARK -->` above it), its text."""

    section: str
    language: str
    mark: str
    text: str


def blocks(path: Path) -> Sequence[Block]:
    found: list[Block] = []
    section = mark = ""
    lines = iter(path.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith("## "):
            section = line[3:].strip()
        elif match := _MARK.match(line):
            mark = match["mark"]
        elif match := _FENCE.match(line):
            inside = []
            for each in lines:
                if each.strip() == "```":
                    break
                inside.append(each)
            found.append(Block(section, match["language"], mark, "\n".join(inside) + "\n"))
            mark = ""
    return found
