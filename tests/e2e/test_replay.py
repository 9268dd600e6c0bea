"""A live cluster that is recorded, loses a node, and is replayed under another policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mandor.cli.main import run
from tests.e2e.cluster import Cluster, eventually

SLEEPER = """
name: {name}
replicas: {replicas}
engine: process
command: [sh, -c, "exec sleep 1000 # {word}"]
env: {{PASSWORD: "{word}"}}
resources: {{memory: 16Mi}}
"""
PACKED = """
profiles:
  - pluginConfig:
      - {name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}
"""


def lines(path: Path) -> list[dict[str, object]]:
    """All whole ones."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def down_for(path: Path, node: str, seconds: float) -> bool:
    """The recording goes on for so long after the node was given up."""
    all_ = lines(path)
    given_up = [
        float(str(each["at"]))
        for each in all_
        if each["what"] == "seen"
        and each["object"]["meta"]["name"] == node  # type: ignore[index]
        and each["object"]["status"]["phase"] == "Down"  # type: ignore[index]
    ]
    return bool(given_up) and float(str(all_[-1]["at"])) - given_up[0] > seconds


def phases(path: Path, node: str) -> list[str]:
    objects = [each["object"] for each in lines(path) if each["what"] == "seen"]
    return [each["status"]["phase"] for each in objects if each["meta"]["name"] == node]  # type: ignore[index]


def test_a_recorded_loss_is_replayed_under_another_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording, word = tmp_path / "recording", "hunter2"
    with Cluster(tmp_path / "cluster", settings={"MANDOR_RECORD": str(recording)}) as cluster:
        cluster.start_server()
        for name in ("n0", "n1"):
            cluster.start_agent(name)
        cluster.apply(SLEEPER.format(name="web", replicas=4, word=word))
        cluster.wait_running("web", 4)
        cluster.agents["n0"].kill()
        eventually("the loss is recorded", lambda: "Down" in phases(recording, "n0"))
        eventually(
            "all run on the node that is left",
            lambda: (
                [each["spec"]["node"] for each in cluster.instances("web") if each["status"]["phase"] == "Running"]
                == ["n1"] * 4
            ),
        )
        eventually("the replay has the time that its heartbeats may take", lambda: down_for(recording, "n0", 20))
        cluster.servers[0].end()
    assert lines(recording)[-1]["what"] == "ended"
    assert word not in recording.read_text()

    profile = tmp_path / "packed.yaml"
    profile.write_text(PACKED)
    command = ["simulate", "--replay", str(recording), "--profile", str(profile), "--workers", "1"]
    assert run([*command, "-o", "json", "--html", str(tmp_path / "page.html")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in report["strategies"]] == ["as recorded", "packed.yaml"]
    assert [each["name"] for each in report["phases"]] == ["start", "1. n0 is lost"]
    for strategy in report["strategies"]:
        last = strategy["typical"]["phases"][-1]
        assert last["workloads"]["web"]["running"] == 4
        assert len(last["nodes"]["n1"]["instances"]) == 4
    assert 0 < report["replay"]["strategies"]["as recorded"]["same_count_percent"] <= 100
    assert "Comparison with the recording" in (tmp_path / "page.html").read_text()
    assert run(command) == 0
    assert "Comparison with the recording" in capsys.readouterr().out
