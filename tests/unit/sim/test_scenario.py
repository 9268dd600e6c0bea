"""Scenario files: every mistake with its line, and a near word where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mandor.errors import Invalid
from mandor.sim.compare import load_scenario
from mandor.sim.scenario import read_scenario
from mandor.sim.strategy import revised

GOOD = """\
name: small
nodes:
  - {name: "n{n}", count: 2, cpu: 2, memory: 2Gi}
workloads:
  - {name: web, image: nginx, replicas: 2, resources: {memory: 256Mi}}
timeline:
  - {at: 1m, phase: loss, down: n0}
  - {at: 5m, phase: again, up: n0}
end: 10m
"""


def test_one_thing_need_not_be_a_list_and_phases_follow_the_timeline() -> None:
    scenario, _ = read_scenario(GOOD, "s.yaml")
    assert scenario.node_names == ["n0", "n1"]
    assert scenario.timeline[0].down == ("n0",)
    assert scenario.phases == [("start", 0.0, 60.0), ("loss", 60.0, 300.0), ("again", 300.0, 600.0)]
    assert list(scenario.plans) == ["as written"]


@pytest.mark.parametrize(
    ("old", "new", "line", "message", "hint"),
    [
        ("down: n0", "down: n9", 7, "there is no node 'n9'", "n0"),
        ("down: n0", "dwon: n0", 7, "unknown key `dwon`", "did you mean `down`?"),
        ("at: 1m, ", "at: 1x, ", 7, "is not a duration", None),
        ("at: 5m", "at: 30s", 8, "comes after", "in order of time"),
        ("at: 5m", "at: 20m", 8, "is not before the end", None),
        ("phase: again", "phase: loss", 6, "two phases are called 'loss'", None),
        ("end: 10m", "end: 0s", 9, "`end` is 0s", None),
        ("end: 10m", "", 1, "`end` is missing", None),
        ('name: "n{n}", count: 2', "name: Not Good", 3, "node name", None),
        ("memory: 2Gi}", "memory: 2Gx}", 3, "is not a size", None),
    ],
)
def test_mistakes_are_reported_with_their_line(old: str, new: str, line: int, message: str, hint: str | None) -> None:
    with pytest.raises(Invalid) as caught:
        read_scenario(GOOD.replace(old, new), "s.yaml")
    assert caught.value.facts["line"] == line
    assert message in str(caught.value)
    if hint is not None:
        assert hint in (caught.value.hint or "")


def test_an_empty_file_and_a_scenario_without_work_are_refused() -> None:
    with pytest.raises(Invalid, match="a scenario is one mapping"):
        read_scenario("", "s.yaml")
    with pytest.raises(Invalid, match="the scenario has no workloads"):
        read_scenario("name: x\nnodes: [{name: n}]\nworkloads: []\nend: 1m\n", "s.yaml")


@pytest.mark.parametrize(
    ("more", "message", "line"),
    [
        ("usage: {wbe: {memory: 50%}}\n", "there is no workload 'wbe'", 10),
        ("expect:\n  - {running: db}\n", "there is no workload 'db'", 11),
        ("traffic: [{from: web, to: db}]\n", "there is no workload 'db'", 10),
        ("expect:\n  - {phase: never, pending_most: 0}\n", "there is no phase 'never'", 11),
        ("expect:\n  - {strategy: best, pending_most: 0}\n", "there is no strategy 'best'", 11),
        ("expect:\n  - {phase: loss}\n", "it expects nothing", 11),
        ("usage: {web: {memory: much}}\n", "is not a size", 10),
    ],
)
def test_names_that_are_nowhere_are_refused(tmp_path: Path, more: str, message: str, line: int) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(GOOD + more)
    with pytest.raises(Invalid) as caught:
        load_scenario(path)
    assert message in str(caught.value)
    assert caught.value.facts["line"] == line


def test_a_file_of_work_that_is_not_there_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(GOOD.replace("- {name: web", "- file: none.yaml\n  - {name: web"))
    with pytest.raises(Invalid, match=r"cannot read .*none\.yaml: no such file"):
        load_scenario(path)


@pytest.mark.req("S3-29", "S3-30", "S3-31", "S3-32")
def test_a_strategy_changes_strengths_and_priorities_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    placed = "placement: {where: [a == b], near: [{workload: web, strength: prefer, weight: 5}]}"
    path.write_text(
        GOOD.replace("memory: 256Mi}", f"memory: 256Mi}}, {placed}")
        + "strategies:\n  all: {strength: should, priorities: {web: 7}}\n  none: {}\n"
    )
    loaded = load_scenario(path)
    (web,) = revised(loaded.first, loaded.scenario.plans["all"])
    rules = web.spec.groups["main"].placement.rules
    assert [each.strength for each in rules] == ["should", "should"]
    assert web.spec.priority == 7
    assert revised(loaded.first, loaded.scenario.plans["none"]) == list(loaded.first)


def test_what_stands_in_a_scenario_is_taken_as_it_was_typed(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    work = "{name: a, image: b, env: {VERSION: 1.10, MODE: 0755}}"
    path.write_text(f"name: x\nnodes: [{{name: n}}]\nworkloads: [{work}]\nend: 1h\n")
    (workload,) = load_scenario(path).workloads
    assert workload.spec.groups["main"].tasks["main"].env == {"VERSION": "1.10", "MODE": "0755"}
