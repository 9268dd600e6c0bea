"""Small clusters through everything that can break, from a seed: what must hold, holds, and they come to rest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mandor.cli.fault_runs import again
from mandor.model.instance import Instance, InstanceSpec
from mandor.model.meta import Meta
from mandor.model.workload import Workload
from mandor.sim.fault_run import FaultRunResult, run_with_faults
from mandor.sim.fault_runs import FaultRunSource
from mandor.sim.invariant_checker import InvariantChecker, InvariantViolated
from mandor.sim.random_scenario import random_scenario
from mandor.sim.run import LoadedScenario
from mandor.sim.virtual import run_virtual
from mandor.store.base import Put

SEEDS, PART = 200, 5
AS_WRITTEN = "as written"


@pytest.mark.req("S0-17", "S0-18", "S0-20", "S0-24", "S0-25", "S0-27", "S0-28", "S2-16", "S2-19", "S2-50")
@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_whatever_breaks_what_must_hold_does_and_the_cluster_comes_to_rest(first: int) -> None:
    broken = []
    for seed in range(first, first + PART):
        result = run_with_faults(random_scenario(seed), AS_WRITTEN, seed)
        broken += [f"{text} (again: {again(FaultRunSource(), result)})" for text in result.broken]
    assert broken == []


@pytest.mark.req("S3-20")
@pytest.mark.parametrize("seed", [3, 36])
def test_the_same_seed_gives_the_same_history_byte_for_byte_in_any_process(seed: int) -> None:
    def told(hashes: str) -> str:
        words = ["simulate", "--faults", "--seed", str(seed), "--history"]
        command = [sys.executable, "-m", "mandor.cli.main", *words]
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert told("1") == told("2")


def test_every_seed_has_another_cluster_and_all_types_and_faults_occur() -> None:
    pieces = [random_scenario(seed) for seed in range(30)]
    assert len({str(each.scenario.nodes) + str(each.first) for each in pieces}) == 30
    workloads = [each for loaded in pieces for each in loaded.workloads]
    assert {each.spec.type for each in workloads} == {"service", "batch", "daemon"}
    assert any(each.spec.schedule is not None for each in workloads)
    deeds = {key for loaded in pieces for each in loaded.scenario.timeline for key, _ in (*each.nodes, *each.workloads)}
    assert deeds == {"cordon", "uncordon", "drain", "delete", "scale", "rollout"}
    notes = [note for seed in range(4) for note in run_with_faults(pieces[seed], AS_WRITTEN, seed, story=True).notes]
    assert {"down", "up", "partition", "restart", "messages", "clock", "calm"} <= {each.kind for each in notes}


# The checker sees what is wrong.


async def witnessed(loaded: LoadedScenario) -> str:
    """Return the violation after an instance was bound to a full node without the scheduler."""
    async with loaded.cluster(loaded.scenario.plans[AS_WRITTEN], 0, unreliable=True) as cluster:
        await cluster.add_nodes(loaded.kinds)
        checker = InvariantChecker(cluster)
        cluster.start("checker", checker.follow())
        for _, objects in loaded.arrivals(loaded.scenario.plans[AS_WRITTEN], 0):
            for each in objects:
                assert isinstance(each, Workload)
                await cluster.apply(each)
        await cluster.clock.sleep(30)
        first = cluster.instances("web")[0]
        for number in range(100, 150):
            spec = InstanceSpec(workload="web", release=first.spec.release, index=number)
            bound = Instance(meta=Meta(name=f"web-{number}", namespace="default"), spec=spec).bound("n0", at=0.0)
            await cluster.store.commit(Put(bound))
        try:
            await cluster.clock.sleep(1)
            await cluster.kill("checker")
        except InvariantViolated as broken:
            return str(broken)
        return ""


def test_an_instance_too_many_is_noticed() -> None:
    assert "is one too many" in run_virtual(witnessed(random_scenario(1)))


def test_a_cluster_that_does_not_come_to_rest_is_broken_and_shows_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mandor.cli.main import run

    monkeypatch.setattr("mandor.sim.fault_run.unsettled_reasons", lambda *given: ["web-0 is Starting"])
    monkeypatch.setattr("mandor.sim.fault_run.REST_SECONDS", 5.0)
    assert run(["simulate", "--faults", "--seed", "7"]) == 1
    told = capsys.readouterr()
    assert "1 broken" in told.out
    assert "web-0 is Starting" in told.err
    assert "repeat: mandor simulate --faults --seed 7 --history" in told.err


def test_a_scenario_of_ones_own_goes_through_faults_with_its_strategies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mandor.cli.main import run

    path = tmp_path / "s.yaml"
    path.write_text(
        "name: own\nnodes: [{name: 'n{n}', count: 3, cpu: 2, memory: 2Gi}]\n"
        "workloads: [{name: web, image: nginx, replicas: 2, resources: {memory: 256Mi}}]\n"
        "strategies: {a: {}, b: {restore: false}}\nend: 1m\nexpect: [{pending_most: 0}]\n"
    )
    assert run(["simulate", str(path), "--faults", "--seeds", "1", "--history"]) == 0
    shown = capsys.readouterr().out
    assert "all faults are repaired" in shown
    assert "2 runs" in shown


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "give a SCENARIO"),
        (["--faults", "--strategy", "a"], "--strategy requires a SCENARIO"),
        (["x.yaml", "--faults", "--profile", "p.yaml"], "defines its own"),
        (["x.yaml", "--history"], "require --faults"),
        (["--faults", "--html", "x.html"], "--html"),
        (["--faults", "--profile", "nowhere.yaml", "--seed", "1"], "nowhere.yaml"),
    ],
)
def test_what_makes_no_sense_with_or_without_faults_is_refused(
    command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from mandor.cli.main import run

    assert run(["simulate", *command]) in (1, 2)
    assert message in capsys.readouterr().err


def test_a_result_knows_its_command() -> None:
    result = FaultRunResult(seed=4, strategy="b", digest="", changes=0, seconds=1.0)
    own = FaultRunSource(path=Path("my shop.yaml"))
    assert again(own, result, many=True) == "mandor simulate 'my shop.yaml' --faults --seed 4 --history --strategy b"
    assert again(FaultRunSource(profile="p.yaml"), result).endswith("--seed 4 --history --profile p.yaml")
