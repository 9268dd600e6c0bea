"""Agents and supervisors that are killed at random moments start nothing twice and leak nothing."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from mandor.engines.base import Unit, UnitPhase
from mandor.engines.process.folder import UnitFolder
from mandor.testing.traces import find_traces
from tests.integration.engines import crash_agent
from tests.integration.engines.conftest import Bench, until
from tests.integration.engines.crash_agent import make_units

ROUNDS = 40
SEED = 2_200
START_SECONDS_MOST = 5.0


@pytest.mark.slow
@pytest.mark.req("S0-27", "S0-29")
async def test_agents_and_supervisors_killed_at_any_moment_start_nothing_twice_and_leak_nothing(tmp_path: Path) -> None:
    ledger, journal = tmp_path / "shared" / "ledger", tmp_path / "journal"
    ledger.parent.mkdir()
    ledger.touch()
    ledger.chmod(0o666)
    journal.touch()
    bench = Bench(tmp_path / "engine")
    prefix = secrets.token_hex(8)
    units = make_units(prefix)
    await asyncio.to_thread(kill_agents, bench.directory, ledger, journal, prefix)

    begun = Counter(ledger.read_text().split())
    assert len(begun) > ROUNDS
    assert {unit: count for unit, count in begun.items() if count != 1} == {}
    async with asyncio.timeout(60):  # A supervisor that was killed last can be listed for a moment.
        while await running_without_process(bench):
            await asyncio.sleep(0.1)
    for unit in units:
        await bench.engine.remove(unit)
    assert await bench.engine.list() == []
    await until(lambda: not find_traces([prefix]), lambda: f"left: {find_traces([prefix])}")
    await bench.engine.close()
    assert not (bench.directory / "network.json").exists(), "no address is leased any more"
    assert list((bench.directory / "units").iterdir()) == []
    assert list((bench.directory / "trash").iterdir()) == []


async def running_without_process(bench: Bench) -> list[Unit]:
    running = [each.unit for each in await bench.engine.list() if each.phase is UnitPhase.RUNNING]
    return [each for each in running if not any(trace.startswith("process") for trace in find_traces([str(each)]))]


def kill_agents(directory: Path, ledger: Path, journal: Path, prefix: str) -> None:
    chance = random.Random(SEED)
    with subprocess.Popen(
        [sys.executable, str(Path(crash_agent.__file__)), str(directory), str(ledger), str(journal), prefix],
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
            wait_for_starts(ledger, chance.randrange(5))
            time.sleep(chance.uniform(0.0, 0.1))
            os.kill(agent, signal.SIGKILL)
            assert nursery.stdout.readline() == "dead\n"
            kill_supervisors(directory, chance)
        nursery.stdin.close()
        assert nursery.wait(60) == 0


def wait_for_starts(ledger: Path, count: int) -> None:
    """Wait until that many more units have started, or for a while: a busy machine is not killed before it did
    anything."""
    before, deadline = ledger.stat().st_size, time.monotonic() + START_SECONDS_MOST
    line = len(ledger.read_text().partition("\n")[0]) + 1 if before else 32
    while ledger.stat().st_size < before + count * line and time.monotonic() < deadline:
        time.sleep(0.01)


def kill_supervisors(directory: Path, chance: random.Random) -> None:
    """Kill some supervisors at random."""
    folders = sorted((directory / "units").iterdir())
    found = [pid for folder in folders if (pid := UnitFolder(folder).supervisor()) is not None]
    for pid in chance.sample(found, min(len(found), chance.randrange(6))):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
