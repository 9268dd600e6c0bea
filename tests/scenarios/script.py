"""Reads scenarios: a command, a line of dashes, what it must answer.

nodes 2 cpu=4
----
ok
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Step:
    line: int
    verb: str
    words: list[str]
    fields: dict[str, str]
    expected: str

    @property
    def command(self) -> str:
        return " ".join([self.verb, *self.words])


def read_script(path: Path) -> list[Step]:
    """Steps are separated by an empty line; lines that begin with `#` are for people."""
    steps: list[Step] = []
    block: list[tuple[int, str]] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate([*lines, ""], start=1):
        if line.startswith("#"):
            continue
        if line.strip():
            block.append((number, line))
        elif block:
            steps.append(_step(path, block))
            block = []
    return steps


def _step(path: Path, block: list[tuple[int, str]]) -> Step:
    texts = [text for _, text in block]
    if "----" not in texts:
        raise ValueError(f"{path.name}:{block[0][0]}: a step has a line of four dashes")
    split = texts.index("----")
    verb, *rest = shlex.split(" ".join(texts[:split]))
    words = [word for word in rest if "=" not in word]
    fields = dict(word.split("=", 1) for word in rest if "=" in word)
    return Step(block[0][0], verb, words, fields, "\n".join(texts[split + 1 :]))


def parse_value(text: str) -> object:
    """`3`, `{rule: zone == a}`, `[docker, podman]`: as in a manifest."""
    return yaml.safe_load(text)
