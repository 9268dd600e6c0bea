"""Values of a Nomad job: variables from files, directives in texts, functions, limits, tasks without a group."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from mandor.errors import Invalid
from tests.unit.importers.test_nomad import imported, job, task_of

DOCKER = 'driver = "docker"\nconfig {\nimage = "a"\n%s\n}'


def env_of(text: str, before: str = "", **options: Any) -> dict[str, str]:
    made = imported(
        f'{before}\njob "a" {{ group "g" {{ task "t" {{\n{DOCKER % ""}\nenv {{\n{text}\n}}\n}} }} }}', **options
    )
    found: dict[str, str] = made.made[-1].manifest["groups"]["g"]["tasks"]["t"]["env"]
    return found


@pytest.mark.req("S0-32")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("%{ if 1 < 2 }a%{ else }b%{ endif }", "a"),
        ("%{ if 1 > 2 }a%{ else }b%{ endif }", "b"),
        ("%{ if false }a%{ endif }", ""),
        ("<%{ for each in [1, 2] }%{ if each > 1 },%{ endif }${each}%{ endfor }>", "<1,2>"),
        ("%{ for key, each in {a = 1} }${key}=${each}%{ endfor }", "a=1"),
        ("a ${~ 1 ~} b", "a1b"),
        ("%%{ if }", "%{ if }"),
    ],
)
def test_directives_in_a_text_are_evaluated(text: str, value: str) -> None:
    assert env_of(f'A = "{text}"')["A"] == value


def test_a_directive_on_a_line_of_its_own_leaves_no_line() -> None:
    text = "A = <<EOT\n%{ for each in [1, 2] ~}\nserver ${each}\n%{ endfor ~}\nend\nEOT"
    assert env_of(text)["A"] == "server 1\nserver 2\nend\n"


def test_loops_in_texts_are_limited() -> None:
    deep = "%{ for a in range(1000) }%{ for b in range(1000) }x%{ endfor }%{ endfor }"
    with pytest.raises(Invalid):
        env_of(f'A = "{deep}"')


def test_uuidv4_and_pathexpand_have_values() -> None:
    found = env_of(
        'A = uuidv4()\nB = uuidv4()\nC = pathexpand("~/x")\nD = pathexpand("/~")', environment={"HOME": "/me"}
    )
    assert uuid.UUID(found["A"]).version == 4
    assert found["A"] != found["B"]
    assert (found["C"], found["D"]) == ("/me/x", "/~")
    with pytest.raises(Invalid, match="home directory is unknown"):
        env_of('C = pathexpand("~/x")')


DECLARED = 'variable "a" { default = "d" }\nvariable "b" {\n type = list(string)\n default = []\n}'


def test_values_of_variables_come_from_files() -> None:
    text = 'A = var.a\nB = join(",", var.b)'
    files = {"one.hcl": 'a = "1"\nb = ["x", "y"]\n', "two.json": json.dumps({"a": "2"})}

    def read(**options: Any) -> dict[str, str]:
        return env_of(text, DECLARED, files=files, **options)

    assert read(variable_files=("one.hcl",)) == {"A": "1", "B": "x,y"}
    assert read(variable_files=("one.hcl", "two.json"))["A"] == "2"
    assert read(variable_files=("one.hcl",), environment={"NOMAD_VAR_a": "e"})["A"] == "1"
    assert read(variable_files=("one.hcl",), variables={"a": "given"})["A"] == "given"
    with pytest.raises(Invalid, match="there is no text file none"):
        read(variable_files=("none",))
    with pytest.raises(Invalid, match="has no blocks"):
        env_of(text, DECLARED, files={"b.hcl": "x {}"}, variable_files=("b.hcl",))


@pytest.mark.parametrize(("given", "soft", "hard"), [("-1", -1, -1), ("1:-1", 1, -1), ("5", 5, 5)])
def test_a_ulimit_may_be_unlimited(given: str, soft: int, hard: int) -> None:
    task = task_of(DOCKER % f'ulimit {{\nmemlock = "{given}"\n}}')
    assert task["options"]["docker"]["ulimits"] == {"memlock": {"soft": soft, "hard": hard}}


def test_a_task_of_a_job_is_a_group_of_its_name() -> None:
    made = imported(
        f'job "a" {{\ntask "one" {{\n{DOCKER % ""}\n}}\ngroup "g" {{\ntask "t" {{\n{DOCKER % ""}\n}}\n}}\n}}'
    )
    groups = made.made[-1].manifest["groups"]
    assert {name: list(group["tasks"]) for name, group in groups.items()} == {"g": ["t"], "one": ["one"]}
    assert made.report.dropped == 0
    assert list(job()["groups"]) == ["web"]


@pytest.mark.req("S0-32")
def test_each_check_of_a_task_is_made() -> None:
    checks = """
      network {
        port "http" {}
        port "db" {}
      }
      service {
        port = "http"
        check {
          type     = "http"
          path     = "/ready"
          interval = "5s"
          timeout  = "1s"
        }
        check {
          type     = "tcp"
          port     = "db"
          interval = "9s"
          timeout  = "3s"
          check_restart { limit = 2 }
        }
        check {
          type    = "script"
          command = "/ok"
        }
      }"""
    made = imported(f'job "a" {{\ngroup "g" {{\n{checks}\ntask "t" {{\n{DOCKER % ""}\n}}\n}}\n}}')
    task = made.made[-1].manifest["groups"]["g"]["tasks"]["t"]
    readiness, health = task["readiness"], task["health"]
    found = [readiness, *readiness["also"]]
    assert [next(key for key in ("http", "tcp", "command") if key in each) for each in found] == [
        "http",
        "command",
        "tcp",
    ]
    assert readiness["interval"] == "5s"
    assert readiness["also"][1] == {"tcp": "db", "timeout": "3s"}
    assert (health["tcp"], health["failures"]) == ("db", 2)
    assert made.report.dropped == 0
