"""`mandor simulate`, as somebody types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mandor.cli.main import run

SCENARIO = """\
name: small
description: <two> nodes
nodes: [{name: "n{n}", count: 2, cpu: 2, memory: 2Gi}]
workloads:
  - {name: web, image: nginx, replicas: 2, resources: {memory: 256Mi}, placement: {where: [zone == a]}}
strategies: {must: {}, should: {strength: should}}
timeline: [{at: 2m, phase: loss, down: n0}]
end: 5m
expect:
  - {strategy: should, pending_most: 0}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.mark.req("S3-49")
def test_strategies_are_shown_side_by_side(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(scenario), "--workers", "1"]) == 0
    shown = capsys.readouterr().out
    assert "small: 1 seed, 2 phases" in shown
    assert "Strategy must" in shown
    assert "Strategy should" in shown
    assert "Comparison" in shown
    assert "runs with violated expectations  0 of 1  0 of 1" in shown
    assert "down: priority 0 " in shown, "whose class has no name"
    assert "without `zone == a`" in shown
    assert "2 NodeAffinity" in shown


def test_of_many_nodes_the_first_are_shown_and_the_others_counted(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario.write_text(SCENARIO.replace("count: 2", "count: 43"))
    assert run(["simulate", str(scenario), "--strategy", "should", "--workers", "1"]) == 0
    shown = capsys.readouterr().out
    assert " n39 " in shown
    assert " n40 " not in shown
    assert shown.count("… and 3 more") == 2, "in each of two phases"


def test_json_has_the_whole_report_and_the_page_is_one_file(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    command = ["simulate", str(scenario), "--seeds", "2", "-o", "json", "--html", str(page), "--workers", "1"]
    assert run(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"]
    assert report["seeds"] == [0, 1]
    must, should = report["strategies"]
    assert must["phases"][0]["pending"]["most"] == 2
    assert should["phases"][0]["pending"]["most"] == 0
    assert should["phases"][0]["relaxed_rules"] == {"zone == a": 4}
    text = page.read_text()
    assert "&lt;two&gt; nodes" in text
    assert "<svg" in text
    assert "http://" not in text
    assert "https://" not in text
    assert "<script" not in text


def test_a_page_that_cannot_be_written_is_reported_and_the_report_is_not_lost(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["simulate", str(scenario), "--workers", "1", "--html"]
    assert run([*command, str(tmp_path / "nowhere" / "a.html")]) == 1
    told = capsys.readouterr()
    assert "the directory" in told.err
    assert told.out == "", "nothing is run for nothing"
    assert run([*command, str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert f"cannot write {tmp_path}: is a directory" in told.err
    assert "Comparison" in told.out


def test_an_expectation_that_does_not_hold_fails_the_run_and_shows_how_to_see_it_again(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = scenario.with_name("my scenario.yaml")
    scenario.write_text(SCENARIO.replace("{strategy: should, pending_most", "{pending_most"))
    assert run(["simulate", str(scenario), "--workers", "1"]) == 1
    told = capsys.readouterr().err
    assert "violated: pending most 0 (1 run)" in told
    assert "2 pending, and at most 0 are allowed" in told
    assert f"repeat: mandor simulate '{scenario}' --strategy must --seed 0" in told
    assert run(["simulate", str(scenario), "--strategy", "should", "--seed", "0"]) == 0


def test_several_processes_come_to_the_same_as_one(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = []
    for workers in ("1", "2"):
        assert run(["simulate", str(scenario), "--seeds", "2", "-o", "json", "--workers", workers]) == 0
        reports.append(capsys.readouterr().out)
    assert reports[0] == reports[1]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--strategy", "shuold"], 1, "did you mean `should`?"),
        (["--seed", "1", "--seeds", "2"], 2, "cannot be combined"),
        (["--seeds", "0"], 2, "0"),
    ],
)
def test_wrong_usage_is_reported(
    scenario: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, told: str
) -> None:
    assert run(["simulate", str(scenario), *arguments]) == code
    assert told in capsys.readouterr().err


def test_a_mistake_is_reported_with_file_and_line(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario.write_text(SCENARIO.replace("down: n0", "down: n7"))
    assert run(["simulate", str(scenario)]) == 1
    told = capsys.readouterr().err
    assert f"{scenario}:7: `timeline[0].down`: there is no node 'n7'" in told
    scenario.write_text(SCENARIO.replace("image: nginx,", "imge: nginx,").replace("down: n0", "submit: {nam: x}"))
    assert run(["simulate", str(scenario)]) == 1
    assert f"{scenario}:5: unknown key `imge`" in capsys.readouterr().err
    scenario.write_text(SCENARIO.replace("down: n0", "submit: {nam: x}"))
    assert run(["simulate", str(scenario)]) == 1
    assert f"{scenario}:7: unknown key `nam`" in capsys.readouterr().err
    assert run(["simulate", "nowhere.yaml"]) == 1
    assert "cannot read nowhere.yaml: no such file" in capsys.readouterr().err


COMPOSE = """\
services:
  web:
    image: nginx
    deploy: {replicas: 2}
    healthcheck: {test: [CMD, "true"]}
    unheard_of: 1
"""


@pytest.mark.req("S0-32")
def test_files_of_other_tools_are_rehearsed_and_what_they_lose_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: foreign\nnodes: [{name: n0}]\nworkloads: [{file: compose.yaml}]\n"
        "timeline: [{at: 1m, scale: {workload: web, replicas: 3}}]\nend: 3m\n"
    )
    page = tmp_path / "page.html"
    assert run(["simulate", str(path), "-o", "json", "--html", str(page)]) == 0
    told = capsys.readouterr()
    report = json.loads(told.out)
    assert report["strategies"][0]["phases"][0]["nodes"]["n0"]["instances"] == {"web-0": 1, "web-1": 1, "web-2": 1}
    assert [(each["line"], each["fate"]) for each in report["imported"]["notes"]] == [(6, "unknown")]
    assert "compose.yaml:6" in told.err
    assert "unheard_of" in page.read_text()
    assert run(["simulate", str(path), "--strict"]) == 1
    assert "compose.yaml:6" in capsys.readouterr().err
