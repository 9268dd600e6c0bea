"""The bench of many agents, with few: it runs, and says what it has to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


AGENTS, EACH = 500, 4


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.req("S0-16")
def test_one_server_leads_hundreds_of_agents_that_acknowledge_all_that_it_binds_to_them(tmp_path: Path) -> None:
    kept = tmp_path / "scale.json"
    size = ["--agents", str(AGENTS), "--each", str(EACH), "--every", "2", "--seconds", "3", "--rounds", "2"]
    command = [sys.executable, str(ROOT / "bench" / "scale.py"), "--store", "sqlite", *size, "--json", str(kept)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    (case,) = json.loads(kept.read_text())["result"]["cases"]
    assert case["agents"] == AGENTS
    for turn in ("round_1", "round_2"):
        assert case[turn]["instances"] == AGENTS * EACH
        assert case[turn]["acknowledged_a_second"] > 0
        assert case[turn]["acknowledgements_waiting_most"] <= AGENTS * EACH
        assert case[turn]["requests_an_instance"] < 2, "agents report many instances in one request"
        assert case[turn]["conflicts"] == 0
    assert case["rest_full"]["beats_a_second"] > 0
    assert case["restart"]["ready_seconds"] > 0
