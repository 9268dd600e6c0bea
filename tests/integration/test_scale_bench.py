"""The bench of many agents, with few: it runs, and says what it has to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.req("S0-7")
def test_simulated_agents_acknowledge_all_that_a_real_server_binds_to_them(tmp_path: Path) -> None:
    kept = tmp_path / "scale.json"
    few = ["--store", "sqlite", "--agents", "20", "--each", "5", "--every", "1", "--seconds", "1.5"]
    command = [sys.executable, str(ROOT / "bench" / "scale.py"), *few, "--json", str(kept)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    (case,) = json.loads(kept.read_text())["result"]["cases"]
    for turn in ("round_1", "round_2"):
        assert case[turn]["instances"] == 100
        assert case[turn]["acknowledged_a_second"] > 0
        assert case[turn]["acknowledgements_waiting_most"] <= 100
        assert case[turn]["leader_changes"] == 0
    assert case["rest_full"]["beats_a_second"] > 0
    assert case["restart"]["ready_seconds"] > 0
