"""Traces of pods on nodes with GPUs: what is counted, on a cluster small enough to count by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import traces

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,8000,8192,2,A\nn2,8000,8192,2,B\nplain,64000,65536,0,\n"
HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods_small.csv").write_text(HEAD + "a,1000,512,1,1000,\nb,1000,512,1,500,A|B\n")
    return tmp_path / "nodes.csv", tmp_path / "pods_small.csv"


def test_nodes_without_gpus_do_not_count(files: tuple[Path, Path]) -> None:
    assert [each.name for each in traces.read_machines(files[0])] == ["n1", "n2"]
    assert [each.models for each in traces.read_pods(files[1])] == [(), ("A", "B")]


def test_pods_arrive_until_they_ask_for_more_than_there_is(files: tuple[Path, Path]) -> None:
    pods = traces.read_pods(files[1])
    drawn = list(traces.arrivals(pods, 4000, seed=1))
    assert 5200 <= sum(each.asked for each in drawn) < 6200
    assert drawn == list(traces.arrivals(pods, 4000, seed=1)), "the same seed draws the same"


def test_halves_of_two_gpus_are_no_whole_one(files: tuple[Path, Path]) -> None:
    cards = traces.Cards(traces.read_machines(files[0]))
    whole, most = traces.Pod(0, 0, 1, 1000, ()), traces.Pod(0, 0, 1, 600, ())
    for _ in range(2):
        cards.take("n1", most)
    assert cards.fits(whole).tolist() == [False, True]


@pytest.mark.parametrize("profile", [None, Path("bench/profiles/packing.yaml")])
def test_no_gpu_is_given_out_twice_and_what_does_not_fit_is_counted(
    files: tuple[Path, Path], profile: Path | None
) -> None:
    machines, pods = traces.read_machines(files[0]), traces.read_pods(files[1])
    points = traces.run(machines, pods, profile, seed=3)
    assert [each["arrived_pct"] for each in points] == list(range(50, 131, 5))
    assert points[-1]["failed"] >= 1
    for each in points:
        assert each["alloc_pct"] <= 100
        assert 0 <= each["fragmentation_pct"] <= 100


def test_results_stand_beside_what_others_reached(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ref.csv").write_text("workload,policy,arrived_pct,alloc_pct_mean\nsmall,Best,130,99.5\n")
    words = [
        "--nodes",
        str(files[0]),
        "--pods",
        str(files[1]),
        "--reference",
        str(tmp_path / "ref.csv"),
        "--seeds",
        "2",
    ]
    monkeypatch.setattr(sys, "argv", ["traces", *words, "--json", str(tmp_path / "out.json")])
    traces.main()
    assert capsys.readouterr().out.splitlines()[0].endswith("failed\tBest")
    (result,) = json.loads((tmp_path / "out.json").read_text())["results"]
    assert (result["workload"], result["profile"], result["gpus"]) == ("small", "default", 4)
    assert result["points"][-1]["reference"] == {"Best": 99.5}
