"""Nomad's functions, and what an expression without a value is."""

from __future__ import annotations

import pytest

from mandor.errors import Invalid
from mandor.importers.base import Options, Source
from mandor.importers.nomad import NomadImporter
from mandor.importers.registry import convert
from tests.unit.importers.test_nomad import imported


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ('uuidv5("dns", "kadalu.io")', "808d0902-f454-5ea3-b749-cfd111cc35ed"),
        ('cidrsubnet("10.0.0.0/8", 8, 2)', "10.2.0.0/16"),
        ('cidrhost("10.2.0.0/16", 5)', "10.2.0.5"),
        ('regex("[a-z]+", "53453453.345345aaabbb")', "aaabbb"),
        ('join(",", regexall("[a-z]", "1a2b"))', "a,b"),
        ('basename("/a/b.c")', "b.c"),
        ('try(var.nothing, "otherwise")', "otherwise"),
        ('can(regex("^a$", "b")) ? "yes" : "no"', "no"),
        ('try(local.x.y.z, regex("^a$", "b"), 3)', "3"),
    ],
)
def test_functions_are_evaluated(expression: str, value: str) -> None:
    made = imported(f'locals {{ v = {expression} }}\njob "a" {{ group "g" {{ task "t" {{\n'
                    'driver = "docker"\nconfig { image = "${local.v}" } } } }').made  # fmt: skip
    assert made[0].manifest["groups"]["g"]["tasks"]["t"]["image"] == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ('regex("(", "a")', "this has no value: "),
        ("attr.kernel.name", "`v` has no value here"),
        ("substr(1, 2, 3)", "this has no value: "),
    ],
)
def test_an_expression_without_a_value_is_reported_with_its_line(expression: str, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        imported(f'locals {{\n  v = {expression}\n}}\njob "a" {{\n  meta {{ v = local.v }}\n}}')
    assert caught.value.facts["line"] == 2


def test_a_file_is_looked_for_beside_the_job() -> None:
    text = (
        'job "a" { group "g" { task "t" {\ndriver = "docker"\nconfig { image = "b" }\nenv { C = file("c.txt") } } } }'
    )
    source = Source("jobs/a.nomad", text)
    (made,) = convert(NomadImporter(), [source], Options(read={"jobs/c.txt": "hello"}.get)).made
    assert made.manifest["groups"]["g"]["tasks"]["t"]["env"]["C"] == "hello"
