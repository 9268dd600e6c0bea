"""An agent that is killed at random moments, again and again, starts nothing twice and leaks nothing."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from mandor.engines.base import UnitPhase
from mandor.testing.traces import find_traces
from tests.integration.engines import crash_agent
from tests.integration.engines.conftest import Bench, until
from tests.integration.engines.crash_agent import UNITS

ROUNDS = 40
SEED = 2_200


@pytest.mark.slow
@pytest.mark.req("S0-27", "S0-29", "S2-26")
async def test_an_agent_killed_at_any_moment_starts_nothing_twice_and_leaks_nothing(tmp_path: Path) -> None:
    ledger, journal = tmp_path / "ledger", tmp_path / "journal"
    ledger.touch()
    journal.touch()
    bench = Bench(tmp_path / "engine")
    await asyncio.to_thread(kill_agents, bench.directory, ledger, journal)

    begun = Counter(ledger.read_text().split())
    assert len(begun) > ROUNDS
    assert {unit: count for unit, count in begun.items() if count != 1} == {}
    uids = sorted({unit.uid for unit in UNITS})
    for observed in await bench.engine.list():
        if observed.phase is UnitPhase.RUNNING:
            assert begun[str(observed.unit)] <= 1
            assert [trace for trace in find_traces([str(observed.unit)]) if trace.startswith("process")]
    removed = set(journal.read_text().split())
    for unit in UNITS:
        await bench.engine.remove(unit)
    assert await bench.engine.list() == []
    assert removed <= set(map(str, UNITS))
    await until(lambda: not find_traces(uids), lambda: f"left: {find_traces(uids)}")
    await bench.engine.close()
    assert list((bench.directory / "units").iterdir()) == []
    assert list((bench.directory / "trash").iterdir()) == []


def kill_agents(directory: Path, ledger: Path, journal: Path) -> None:
    chance = random.Random(SEED)
    with subprocess.Popen(
        [sys.executable, str(Path(crash_agent.__file__)), str(directory), str(ledger), str(journal)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        for number in range(ROUNDS):
            nursery.stdin.write(f"{SEED + number}\n")
            nursery.stdin.flush()
            agent = int(nursery.stdout.readline())
            try:
                nursery.wait(chance.uniform(0.01, 0.5))
            except subprocess.TimeoutExpired:
                os.kill(agent, signal.SIGKILL)
            assert nursery.stdout.readline() == "dead\n"
        nursery.stdin.close()
        assert nursery.wait(60) == 0
