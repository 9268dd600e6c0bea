"""Real servers, etcd and agents are killed, paused, cut off, filled up and told a wrong time, all at once."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.faults.network import why_not
from tests.faults.report import report, shown
from tests.faults.trial import run_trial

SEED = int(os.environ.get("MANDOR_TEST_SEED", random.randrange(2**32)))


@pytest.mark.real("etcd")
@pytest.mark.req("S0-15", "S0-17", "S0-18", "S0-20", "S0-21", "S0-25", "S0-31", "S2-23")
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_no_fault_loses_a_write_or_runs_anything_twice(tmp_path: Path, etcd_binary: Path) -> None:
    """Where the machine lets us make no networks, or mount no disks, those faults are left out, and it is said."""
    print(f"MANDOR_TEST_SEED={SEED}; again: python bench/faults.py --failovers 0 --rounds 1 --seed {SEED}")
    if why := why_not():
        print(f"nothing is cut off: {why}")
    trial = run_trial(tmp_path, etcd_binary, SEED, real=not why)
    print(shown(report([trial])))
    print("\n".join(trial.evidence()))
    assert trial.violations == []
    outcomes = {call.outcome for call in trial.history.calls}
    assert "acknowledged" in outcomes, "nobody was served"
    assert len(trial.history.lives) > 20, "next to nothing was started"
