"""The part of Go's templates that scenario files use."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.bench.template import render
from mandor.errors import Invalid


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("pod-{{ .Index }}", "pod-7"),
        ("{{.Index}}/{{.Count}}", "7/20"),
        ("{{DivideInt .Index 2}} {{Mod .Index 4}} {{AddInt 1 .Index}}", "3 3 8"),
        ("{{AddInt 7000 (Mod .Index (DivideInt .Count 5))}}", "7003"),
        ("{{if .mode}}a{{else}}b{{end}}", "a"),
        ("{{if .nothing}}a{{else}}b{{end}}", "b"),
        ('{{if eq .mode "single"}}one{{else}}all{{end}}', "one"),
        ("{{if .mode}}{{if .nothing}}a{{else}}b{{end}}{{else}}{{.Index}}{{end}}", "b"),
        ("{{if .nothing}}{{if .mode}}a{{else}}b{{end}}{{else}}c{{end}}", "c"),
        ("{{AddInt 0 .text}}", "12"),
        ("no action at all", "no action at all"),
    ],
)
def test_values_functions_and_branches(text: str, made: str) -> None:
    assert render(text, {"Index": 7, "Count": 20, "mode": "single", "text": "12"}) == made


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("a\n{{ Twice .Index }}", 2, "there is no function Twice"),
        ("{{DivideInt .Index 0}}", 1, "zero"),
        ('a\nb\n{{AddInt "x" 1}}', 3, "'x' is not a whole number"),
        ("a\n{{if .Index}}\nb", 2, "has no `end`"),
        ("{{end}}", 1, "without an `if`"),
        ("{{AddInt 1 2 3}}", 1, "too much"),
        ("{{AddInt (1 2}}", 1, "a `)` is missing"),
        ("{{AddInt 1}}", 1, "something is missing"),
    ],
)
def test_what_is_not_understood_is_reported_with_its_line(text: str, line: int, told: str) -> None:
    with pytest.raises(Invalid) as caught:
        render(text, {"Index": 1}, file="pod.yaml")
    assert told in caught.value.message
    assert caught.value.facts == {"file": "pod.yaml", "line": line}


@given(st.text(alphabet='{}.-() abI\n"ifelsend0', max_size=40))
def test_any_text_is_rendered_or_refused(text: str) -> None:
    with suppress(Invalid):
        render(text, {"I": 1})
