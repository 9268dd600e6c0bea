"""Files of each tool, damaged: whatever is in them, they are imported or refused with their line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.errors import Invalid
from mandor.importers.base import Options, Source
from mandor.importers.registry import convert, find_importer

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = {
    "compose": EXAMPLES / "compose" / "compose.yaml",
    "kubernetes": EXAMPLES / "kubernetes" / "shop.yaml",
    "nomad": EXAMPLES / "nomad" / "cache.nomad.hcl",
}
JUNK = ["null", "[]", "{}", "-1", "9" * 20, "true", '"${x"', "[1, 2]", '"${a.b}"', "{{", "\t", "%", "'"]
DAMAGE = st.lists(
    st.tuples(
        st.sampled_from(["cut", "again", "junk", "inside", "deeper"]), st.integers(0, 500), st.sampled_from(JUNK)
    ),
    min_size=1,
    max_size=4,
)


def damaged(text: str, damage: list[tuple[str, int, str]]) -> str:
    lines = text.splitlines()
    for kind, place, junk in damage:
        at = place % max(1, len(lines))
        line = lines[at] if lines else ""
        head = line.partition("=" if "=" in line else ":")
        lines[at : at + 1] = {
            "cut": [],
            "again": [line, line],
            "junk": [f"{head[0]}{head[1]} {junk}"],
            "inside": [line[: place % (len(line) + 1)] + junk + line[place % (len(line) + 1) :]],
            "deeper": [f"  {line}"],
        }[kind]
    return "\n".join(lines)


def refusal_of(name: str, text: str) -> Invalid | None:
    """None: it can be imported."""
    try:
        convert(find_importer(name), [Source("a", text)], Options())
    except Invalid as error:
        return error
    return None


@pytest.mark.req("S0-32")
@pytest.mark.parametrize("name", sorted(FILES))
@given(damage=DAMAGE)
@settings(max_examples=60, deadline=None)
def test_a_damaged_file_is_imported_or_refused_with_its_line(name: str, damage: list[tuple[str, int, str]]) -> None:
    text = damaged(FILES[name].read_text(encoding="utf-8"), damage)
    refused = refusal_of(name, text)
    assert refused is None or refused.facts.get("line")


@pytest.mark.req("S0-32")
@pytest.mark.parametrize("name", sorted(FILES))
def test_at_least_95_percent_of_the_keys_of_the_examples_are_mapped(name: str) -> None:
    text = FILES[name].read_text(encoding="utf-8")
    assert convert(find_importer(name), [Source("a", text)], Options()).report.share >= 0.95
