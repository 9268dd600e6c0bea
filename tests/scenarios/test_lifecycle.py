"""Lifecycle scenarios, `lifecycle/*.yaml`: as they are written, and with everything that can break thrown in.

What a scenario expects holds when nothing breaks. Under faults, what must hold whatever happens does (the checker), and
once they stop the cluster comes to rest (`mandor.sim.convergence`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mandor.cli.fault_runs import again
from mandor.sim.compare import load_scenario
from mandor.sim.fault_run import run_with_faults
from mandor.sim.fault_runs import FaultRunSource
from mandor.sim.run import run_scenario

FILES = sorted((Path(__file__).parent / "lifecycle").glob("*.yaml"))
SEEDS = range(6)
AS_WRITTEN = "as written"


@pytest.mark.req("S2-16", "S2-18", "S2-19", "S2-47", "S2-48", "S0-20", "S0-24")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_lifecycle_scenario_goes_as_it_is_written(path: Path) -> None:
    result = run_scenario(load_scenario(path), AS_WRITTEN, 0, story=False)
    assert [f"{each.phase}: {each.expectation}: {each.message}" for each in result.failures] == []


@pytest.mark.req("S2-16", "S2-18", "S2-19", "S2-50", "S0-20", "S0-24")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_with_crashes_restarts_and_failovers_thrown_in_it_keeps_what_must_hold_and_comes_to_rest(path: Path) -> None:
    loaded, broken = load_scenario(path), []
    for seed in SEEDS:
        result = run_with_faults(loaded, AS_WRITTEN, seed)
        broken += [f"{text} (again: {again(FaultRunSource(path=path), result)})" for text in result.broken]
    assert broken == []


def test_every_part_of_the_lifecycle_has_a_scenario() -> None:
    written = {path.stem for path in FILES}
    assert {"rolling", "canary", "rollback", "drain", "maintenance", "machines", "rebalance", "restore"} <= written
    assert {"autoscale", "cron", "daemon"} <= written
